/*
 * Parameters that a program writes down itself: $DLRUN_OUTPUT_DIR/params.json, one JSON object. An
 * object within it becomes members with a dot in their name, a list its JSON text.
 */
#ifndef DLRUN_RUN_PARAMS_H
#define DLRUN_RUN_PARAMS_H

#include <stdint.h>

#include "base/auto.h"
#include "base/json.h"

#define PARAMS_FILE "params.json"

enum {
	PARAMS_FILE_MAX = 256 << 10,
	PARAMS_MAX = 500,
	PARAMS_DEPTH_MAX = 8,
	PARAMS_KEY_MAX = 200,
	PARAMS_TEXT_MAX = 1000, /* bytes of a value; what is longer is left out */
};

struct params;
struct params *params_new(const char *outputs);
/* Read the file if it has changed. What cannot be read leaves the parameters as they are. */
void params_look(struct params *params);
/* An object; the caller frees. */
struct json *params_json(const struct params *params);
void params_free(struct params *params);
AUTO_POINTER(struct params, params_free)

/* The flat form of any object, within the limits above. */
struct json *params_flatten(const struct json *object);

#endif
