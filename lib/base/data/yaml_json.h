/* SPDX-License-Identifier: Apache-2.0 */
/*
 * YAML as JSON, by the core schema of YAML 1.2 (section 10.3), which is what people mean when they
 * write Kubernetes objects: plain null, ~, true, false, decimal integers and decimal fractions have
 * their types, everything else is text (yes, on, 0x1, 1_000, dates too).
 */
#ifndef DLRUN_BASE_DATA_YAML_JSON_H
#define DLRUN_BASE_DATA_YAML_JSON_H

#include "base/data/json.h"
#include "base/data/yaml.h"

/* The caller owns it. What is foreign is left out. */
struct json *yaml_to_json(const struct yaml *yaml);
/* The same, but every scalar is text, and null is "". */
struct json *yaml_to_json_text(const struct yaml *yaml);

#endif
