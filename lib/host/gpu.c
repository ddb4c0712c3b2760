/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/wait.h>

#include "base/loop/proc.h"
#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "host/gpu.h"
#include "host/gpu_impl.h"

enum { INDEX_MAX = 4096, EVIDENCE_MAX = 200 };

/*
 * Pieces of a text
 */

struct piece {
	const char *s;
	size_t len;
};

static bool gpu_is_blank(char c)
{
	return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static struct piece gpu_trim(struct piece piece)
{
	while (piece.len && gpu_is_blank(*piece.s)) {
		piece.s++;
		piece.len--;
	}
	while (piece.len && gpu_is_blank(piece.s[piece.len - 1]))
		piece.len--;
	return piece;
}

/* Up to the next separator, trimmed; what follows stays in *rest. */
static struct piece gpu_cut(struct piece *rest, char separator)
{
	const char *end = rest->len ? memchr(rest->s, separator, rest->len) : NULL;
	struct piece piece = {rest->s, end ? (size_t)(end - rest->s) : rest->len};
	size_t used = piece.len + (end ? 1 : 0);

	rest->s += used;
	rest->len -= used;
	return gpu_trim(piece);
}

static bool gpu_has(struct piece piece, const char *word)
{
	return piece.len && memmem(piece.s, piece.len, word, strlen(word));
}

/* "[N/A]", "[Not Supported]", "[Unknown Error]", "N/A", and nothing at all. */
static bool gpu_is_known(struct piece piece)
{
	return piece.len && piece.s[0] != '[' && strncasecmp(piece.s, "N/A", piece.len) != 0;
}

static bool to_number(struct piece piece, uint64_t max, uint64_t *ret)
{
	uint64_t value = 0;

	if (piece.len == 0 || piece.len > 20)
		return false;
	for (size_t i = 0; i < piece.len; i++) {
		unsigned digit = (unsigned)(piece.s[i] - '0');
		if (digit > 9 || value > (UINT64_MAX - digit) / 10)
			return false;
		value = value * 10 + digit;
	}
	*ret = value;
	return value <= max;
}

/* For people: printable ASCII, cut to what fits. */
static void copy_model(struct piece piece, char out[static GPU_MODEL_SIZE])
{
	size_t n = piece.len < GPU_MODEL_SIZE - 1 ? piece.len : GPU_MODEL_SIZE - 1;

	for (size_t i = 0; i < n; i++)
		out[i] = (char)(piece.s[i] >= ' ' && piece.s[i] <= '~' ? piece.s[i] : '?');
	out[n] = '\0';
}

/* An id names a file and stands in CUDA_VISIBLE_DEVICES. */
static bool copy_id(struct piece piece, char out[static GPU_ID_SIZE])
{
	if (!gpu_is_known(piece) || piece.len >= GPU_ID_SIZE)
		return false;
	for (size_t i = 0; i < piece.len; i++)
		if (!isalnum((unsigned char)piece.s[i]) && !strchr("-_.:", piece.s[i]))
			return false;
	memcpy(out, piece.s, piece.len);
	out[piece.len] = '\0';
	return true;
}

static int gpu_fail_output(const char *tool, struct piece words, struct err *err)
{
	AUTO_BUF struct buf shown = buf_with(4 * EVIDENCE_MAX + 4);

	str_escape(&shown, words.s, words.len < EVIDENCE_MAX ? words.len : EVIDENCE_MAX);
	int r = err_set(err, E_GPU_TOOL, "%s does not list the GPUs", tool);
	err_evidence(err, "%s", shown.data);
	return r;
}

static struct gpu_found *add_found(struct gpu_found_list *list, struct err *err)
{
	if (list->n == GPU_MAX) {
		err_set(err, E_DATA_LIMIT, "this machine has more than %d GPUs", GPU_MAX);
		return NULL;
	}
	struct gpu_found *found = &list->v[list->n++];
	memset(found, 0, sizeof(*found));
	return found;
}

/*
 * PCI addresses: 00000000:C1:00.0, 0000:c1:00.0, c1:00.0
 */

bool gpu_pci_normal(const char *s, size_t len, char out[static GPU_PCI_SIZE])
{
	unsigned domain = 0, bus, device, function;
	char text[GPU_PCI_SIZE];
	int end = 0;

	if (len == 0 || len >= sizeof(text) || !isxdigit((unsigned char)s[0]))
		return false;
	memcpy(text, s, len);
	text[len] = '\0';
	if (strspn(text, "0123456789abcdefABCDEF:.") != len)
		return false;
	if (sscanf(text, "%8x:%2x:%2x.%1x%n", &domain, &bus, &device, &function, &end) != 4) {
		domain = 0;
		if (sscanf(text, "%2x:%2x.%1x%n", &bus, &device, &function, &end) != 3)
			return false;
	}
	if ((size_t)end != len || device > 31 || function > 7)
		return false;
	snprintf(out, GPU_PCI_SIZE, "%04x:%02x:%02x.%x", domain, bus, device, function);
	return true;
}

static void copy_pci(struct piece piece, char out[static GPU_PCI_SIZE])
{
	if (!gpu_pci_normal(piece.s, piece.len, out))
		out[0] = '\0';
}

/*
 * nvidia-smi
 */

/* Messages among the lines that do not invalidate the others: no GPU at all, or one that is lost
 * while the rest works. */
static bool is_remark(struct piece line)
{
	static const char *const remarks[] = {"No devices were found", "No devices found",
		"Unable to determine the device handle", "GPU is lost", "WARNING:", "Warning:"};

	for (size_t i = 0; i < ARRAY_LEN(remarks); i++)
		if (gpu_has(line, remarks[i]))
			return true;
	return line.len == 0;
}

/* The name comes last, because it may contain a comma. */
static bool parse_nvidia_line(struct piece line, struct gpu_found *ret)
{
	struct piece index = gpu_cut(&line, ','), id = gpu_cut(&line, ','),
		     pci = gpu_cut(&line, ',');
	struct piece memory = gpu_cut(&line, ',');
	uint64_t number, mib;

	if (!to_number(index, INDEX_MAX, &number) || (id.len && memchr(id.s, '\0', id.len)))
		return false;
	ret->gpu.vendor = GPU_NVIDIA;
	ret->gpu.index = (unsigned)number;
	copy_pci(pci, ret->pci);
	if (!copy_id(id, ret->gpu.id) && !ret->pci[0])
		return false;
	/* A GPU that shares the memory of the machine has none of its own. */
	if (to_number(memory, UINT64_C(1) << 40, &mib))
		ret->gpu.memory_bytes = mib << 20;
	else if (gpu_is_known(memory) || memory.len == 0)
		return false;
	copy_model(gpu_trim(line), ret->gpu.model);
	return true;
}

int gpu_parse_nvidia(const char *text, size_t len, struct gpu_found_list *list, struct err *err)
{
	struct piece rest = {text, len};

	while (rest.len) {
		struct piece line = gpu_cut(&rest, '\n');

		if (is_remark(line))
			continue;
		struct gpu_found *found = add_found(list, err);
		if (!found)
			return -ERR_LIMIT;
		if (!parse_nvidia_line(line, found))
			return gpu_fail_output(
				"nvidia-smi", gpu_trim((struct piece){text, len}), err);
	}
	return 0;
}

/* The server of MPS stays on a GPU when its clients, which are listed too, are gone. */
static bool is_mps_server(struct piece name)
{
	static const char server[] = "nvidia-cuda-mps-server";
	const size_t n = sizeof(server) - 1;

	return name.len >= n && memcmp(name.s + name.len - n, server, n) == 0;
}

static bool gpu_is_text(struct piece piece, const char *s)
{
	return *s && strlen(s) == piece.len && memcmp(s, piece.s, piece.len) == 0;
}

static void mark_used(struct gpu_found_list *list, struct piece id, const char *pci)
{
	vec_foreach (struct gpu_found, found, list) {
		if (found->gpu.vendor != GPU_NVIDIA)
			continue;
		if (gpu_is_text(id, found->gpu.id) || (*pci && str_eq(pci, found->pci)))
			found->gpu.used = true;
	}
}

void gpu_parse_nvidia_apps(const char *text, size_t len, struct gpu_found_list *list)
{
	struct piece rest = {text, len};

	while (rest.len) {
		struct piece line = gpu_cut(&rest, '\n');
		struct piece id = gpu_cut(&line, ','), where = gpu_cut(&line, ',');
		char pci[GPU_PCI_SIZE];

		gpu_cut(&line, ',');
		copy_pci(where, pci);
		if (!is_mps_server(gpu_trim(line)))
			mark_used(list, id, pci);
	}
}

bool gpu_says_no_driver(const char *text)
{
	static const char *const words[] = {"couldn't communicate with the NVIDIA driver",
		"couldn't find libnvidia-ml", "amdgpu not found", "Driver not initialized"};

	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		if (strstr(text, words[i]))
			return true;
	return false;
}

/*
 * rocm-smi: {"card0": {"Unique ID": "0x…", …}, "system": {…}}
 */

/* The case of the keys differs between versions. */
static struct piece rocm_value(const struct json *card, const char *key)
{
	for (const struct json *item = json_first(card); item; item = json_next(item)) {
		const char *s = json_str(item);

		if (s && strcasecmp(json_key(item), key) == 0)
			return gpu_trim((struct piece){s, strlen(s)});
	}
	return (struct piece){"", 0};
}

static bool to_unique(struct piece piece, uint64_t *ret)
{
	char text[17], *end;

	if (piece.len > 2 && memcmp(piece.s, "0x", 2) == 0) {
		piece.s += 2;
		piece.len -= 2;
	}
	if (piece.len == 0 || piece.len >= sizeof(text) || !isxdigit((unsigned char)piece.s[0]))
		return false;
	memcpy(text, piece.s, piece.len);
	text[piece.len] = '\0';
	*ret = strtoull(text, &end, 16);
	return *end == '\0' && *ret != 0;
}

static void set_unique(struct gpu *gpu, uint64_t unique)
{
	snprintf(gpu->id, sizeof(gpu->id), "0x%016llx", (unsigned long long)unique);
}

static struct piece rocm_model(const struct json *card)
{
	static const char *const keys[] = {"Card Series", "Card Model", "Device Name"};

	for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
		struct piece value = rocm_value(card, keys[i]);
		/* A name, where it is not only a number. */
		if (gpu_is_known(value) && memcmp(value.s, "0x", value.len < 2 ? 1 : 2) != 0)
			return value;
	}
	return (struct piece){"AMD GPU", strlen("AMD GPU")};
}

static bool rocm_card(const struct json *card, uint64_t number, struct gpu_found *ret)
{
	uint64_t unique;

	ret->gpu.vendor = GPU_AMD;
	ret->gpu.index = (unsigned)number;
	copy_pci(rocm_value(card, "PCI Bus"), ret->pci);
	if (to_unique(rocm_value(card, "Unique ID"), &unique))
		set_unique(&ret->gpu, unique);
	else if (!ret->pci[0])
		return false;
	if (!to_number(rocm_value(card, "VRAM Total Memory (B)"), UINT64_C(1) << 60,
		    &ret->gpu.memory_bytes))
		ret->gpu.memory_bytes = 0;
	copy_model(rocm_model(card), ret->gpu.model);
	return true;
}

static int rocm_cards(const struct json *json, struct gpu_found_list *list, struct err *err)
{
	for (const struct json *card = json_first(json); card; card = json_next(card)) {
		const char *key = json_key(card);
		uint64_t number;

		if (!key || !str_starts(key, "card"))
			continue;
		struct piece digits = {key + 4, strlen(key + 4)};
		struct gpu_found *found = add_found(list, err);
		if (!found)
			return -ERR_LIMIT;
		if (!to_number(digits, INDEX_MAX, &number) || !rocm_card(card, number, found))
			return gpu_fail_output("rocm-smi", (struct piece){key, strlen(key)}, err);
	}
	return 0;
}

int gpu_parse_rocm(const char *text, size_t len, struct gpu_found_list *list, struct err *err)
{
	struct piece all = gpu_trim((struct piece){text, len});
	const char *start = all.len ? memchr(all.s, '{', all.len) : NULL;
	AUTO_JSON struct json *json = NULL;

	if (gpu_has(all, "No JSON data") || all.len == 0)
		return 0;
	if (!start || json_parse(start, all.len - (size_t)(start - all.s), GPU_OUTPUT_MAX,
			      "the answer of rocm-smi", &json, NULL) < 0)
		return gpu_fail_output("rocm-smi", all, err);
	return rocm_cards(json, list, err);
}

/*
 * KFD: lines of "name number"
 */

static bool kfd_number(struct piece text, const char *name, uint64_t *ret)
{
	while (text.len) {
		struct piece line = gpu_cut(&text, '\n');
		struct piece key = gpu_cut(&line, ' ');

		if (gpu_is_text(key, name))
			return to_number(gpu_trim(line), UINT64_MAX, ret);
	}
	return false;
}

static uint64_t kfd_value(struct piece text, const char *name)
{
	uint64_t value;

	return kfd_number(text, name, &value) ? value : 0;
}

bool gpu_parse_kfd(const char *text, size_t len, struct gpu_found *ret)
{
	struct piece all = {text, len};
	uint64_t place, unique = kfd_value(all, "unique_id");
	uint64_t domain = kfd_value(all, "domain"), version = kfd_value(all, "gfx_target_version");
	struct gpu *gpu = &ret->gpu;

	/* A processor has no SIMD units. */
	if (kfd_value(all, "simd_count") == 0 || !kfd_number(all, "location_id", &place))
		return false;
	gpu->vendor = GPU_AMD;
	snprintf(ret->pci, sizeof(ret->pci), "%04x:%02x:%02x.%x", (unsigned)(domain & 0xffffffff),
		(unsigned)(place >> 8 & 0xff), (unsigned)(place >> 3 & 0x1f),
		(unsigned)(place & 7));
	if (unique)
		set_unique(gpu, unique);
	snprintf(gpu->model, sizeof(gpu->model), "AMD gfx%u%x%x", (unsigned)(version / 10000 % 100),
		(unsigned)(version / 100 % 100), (unsigned)(version % 100));
	return true;
}

uint64_t gpu_parse_kfd_bank(const char *text, size_t len)
{
	enum { HEAP_VISIBLE = 1, HEAP_HIDDEN = 2 };
	struct piece all = {text, len};
	uint64_t heap = kfd_value(all, "heap_type"), size = kfd_value(all, "size_in_bytes");

	return heap == HEAP_VISIBLE || heap == HEAP_HIDDEN ? size & INT64_MAX : 0;
}

/*
 * The list for others
 */

static int gpu_compare(const void *a, const void *b)
{
	const struct gpu *x = a, *y = b;

	if (x->vendor != y->vendor)
		return x->vendor < y->vendor ? -1 : 1;
	if (x->index != y->index)
		return x->index < y->index ? -1 : 1;
	return strcmp(x->id, y->id);
}

static bool has_id(const struct gpu_list *list, const char *id)
{
	for (size_t i = 0; i < list->n; i++)
		if (strcmp(list->v[i].id, id) == 0)
			return true;
	return false;
}

/* The partitions of one GPU may all have its id. */
static bool make_different(const struct gpu_list *list, struct gpu *gpu)
{
	size_t len = strlen(gpu->id);

	for (int i = 2; has_id(list, gpu->id); i++) {
		int n = snprintf(gpu->id + len, sizeof(gpu->id) - len, "-%d", i);
		if ((size_t)n >= sizeof(gpu->id) - len)
			return false;
	}
	return true;
}

int gpu_found_finish(const struct gpu_found_list *found, struct gpu_list *ret, struct err *err)
{
	struct gpu_list sorted = {.n = found->n}, list = {.n = 0};

	for (size_t i = 0; i < found->n; i++) {
		sorted.v[i] = found->v[i].gpu;
		if (!sorted.v[i].id[0])
			snprintf(sorted.v[i].id, GPU_ID_SIZE, "%s", found->v[i].pci);
	}
	if (sorted.n > 1)
		qsort(sorted.v, sorted.n, sizeof(*sorted.v), gpu_compare);
	for (size_t i = 0; i < sorted.n; i++) {
		struct gpu *gpu = &list.v[list.n];

		*gpu = sorted.v[i];
		if (!make_different(&list, gpu))
			return err_set(err, E_GPU_TOOL, "two GPUs have the id %s", sorted.v[i].id);
		list.n++;
	}
	*ret = list;
	return 0;
}

/*
 * Models as people name them
 */

static const char *gpu_next_word(const char *s, size_t *ret_len)
{
	while (*s && !isalnum((unsigned char)*s))
		s++;
	for (*ret_len = 0; isalnum((unsigned char)s[*ret_len]);)
		++*ret_len;
	return s;
}

/* Whether word is a word of model, or several in a row without their separators. */
static bool gpu_has_word(const char *model, const char *word, size_t len)
{
	size_t n;

	for (const char *start = gpu_next_word(model, &n); n;
		start = gpu_next_word(start + n, &n)) {
		size_t done = 0, part = n;
		for (const char *s = start; part && done + part <= len;
			s = gpu_next_word(s + part, &part)) {
			if (strncasecmp(s, word + done, part) != 0)
				break;
			done += part;
		}
		if (done == len)
			return true;
	}
	return false;
}

/* The words of one type, which ends at end. */
static bool gpu_model_is(const char *model, const char *type, const char *end)
{
	size_t len;
	bool any = false;

	for (const char *word = gpu_next_word(type, &len); len && word < end;
		word = gpu_next_word(word + len, &len)) {
		if (!gpu_has_word(model, word, len))
			return false;
		any = true;
	}
	return any;
}

bool gpu_model_matches(const char *model, const char *type)
{
	for (const char *end;; type = end + 1) {
		end = type + strcspn(type, ",");
		if (gpu_model_is(model, type, end))
			return true;
		if (!*end)
			return false;
	}
}

static const char *const vendor_names[] = {[GPU_NVIDIA] = "nvidia", [GPU_AMD] = "amd"};

struct json *gpu_list_to_json(const struct gpu_list *list)
{
	struct json *array = json_array();

	vec_foreach (const struct gpu, gpu, list) {
		struct json *object = json_object();

		json_set_str(object, "vendor", vendor_names[gpu->vendor]);
		json_set_int(object, "index", gpu->index);
		json_set_str(object, "id", gpu->id);
		json_set_str(object, "model", gpu->model);
		json_set_int(object, "memory_bytes", (int64_t)gpu->memory_bytes);
		json_set_bool(object, "used", gpu->used);
		json_add(array, object);
	}
	return array;
}

static bool vendor_from(const char *name, enum gpu_vendor *ret)
{
	for (size_t i = 0; i < ARRAY_LEN(vendor_names); i++) {
		if (!str_eq(name, vendor_names[i]))
			continue;
		*ret = (enum gpu_vendor)i;
		return true;
	}
	return false;
}

static bool copy_str(const char *from, char *to, size_t size)
{
	size_t len = from ? strlen(from) : size;

	if (len >= size)
		return false;
	memcpy(to, from, len + 1);
	return true;
}

static bool gpu_from_json(const struct json *json, struct gpu *ret)
{
	int64_t index = json_get_int(json, "index", -1);
	int64_t memory = json_get_int(json, "memory_bytes", -1);

	if (!vendor_from(json_get_str(json, "vendor"), &ret->vendor) || index < 0 ||
		index > INDEX_MAX || memory < 0)
		return false;
	ret->index = (unsigned)index;
	ret->memory_bytes = (uint64_t)memory;
	ret->used = json_get_bool(json, "used", false);
	return copy_str(json_get_str(json, "id"), ret->id, sizeof(ret->id)) && ret->id[0] &&
	       copy_str(json_get_str(json, "model"), ret->model, sizeof(ret->model));
}

int gpu_list_from_json(const struct json *json, struct gpu_list *ret, struct err *err)
{
	struct gpu_list list = {.n = 0};

	if (json_kind(json) != JSON_ARRAY)
		return err_set(err, E_DATA, "a list of GPUs is not an array");
	if (json_count(json) > GPU_MAX)
		return err_set(err, E_DATA_LIMIT, "a list of GPUs has more than %d", GPU_MAX);
	for (const struct json *item = json_first(json); item; item = json_next(item))
		if (!gpu_from_json(item, &list.v[list.n++]))
			return err_set(err, E_DATA, "GPU %zu of a list is not described", list.n);
	*ret = list;
	return 0;
}

/* CUDA too takes the beginning of a UUID. */
static bool gpu_is_named(const struct gpu *gpu, const char *word)
{
	char index[16];

	snprintf(index, sizeof(index), "%u", gpu->index);
	return str_eq(word, index) || str_eq(word, gpu->id) ||
	       (str_starts(word, "GPU-") && str_starts(gpu->id, word));
}

uint64_t gpu_list_match(const struct gpu_list *list, const struct strv *words)
{
	uint64_t mask = 0;

	for (size_t i = 0; i < list->n; i++) {
		bool is_match = !words || words->n == 0;
		for (size_t k = 0; !is_match && k < words->n; k++)
			is_match = gpu_is_named(&list->v[i], words->v[k]);
		if (is_match)
			mask |= UINT64_C(1) << i;
	}
	return mask;
}

enum { KFD_NODES_MAX = 256, KFD_BANKS_MAX = 8, PROCESSES_MAX = 4096 };

#define SYSFS            "/sys"
#define INTEGRATED_BYTES (UINT64_C(2) << 30)

struct search {
	const char *path, *sysfs;
	int64_t deadline_ms;
	struct gpu_found_list found;
};

/*
 * The tools
 */

static int fail_tool(const char *tool, const char *why, struct err *err)
{
	return err_set(err, E_GPU_TOOL, "%s does not list the GPUs: %s", tool, why);
}

/* Run a tool: its output and status, or E_GPU_TOOL. */
static int gpu_run_tool(const struct search *search, const char *const *argv, struct buf *out,
	int *ret_status, struct err *err)
{
	AUTO_ERR struct err inner = {0};
	int64_t left_ms = search->deadline_ms - clock_ms();

	buf_init(out, GPU_OUTPUT_MAX);
	if (proc_capture(argv, NULL, left_ms > 0 ? left_ms : 0, out, ret_status, &inner) < 0)
		return fail_tool(argv[0], inner.message, err);
	return 0;
}

/* A tool that fails without output: the status is all there is. */
static int check_silence(
	const char *tool, int status, const struct gpu_found_list *found, struct err *err)
{
	AUTO_FREE char *why = NULL;
	char name[8];

	if (status == 0 || found->n > 0)
		return 0;
	if (WIFSIGNALED(status))
		why = mem_printf(
			"it was killed by SIG%s", proc_signal_name(WTERMSIG(status), name));
	else
		why = mem_printf("it exited with status %d", WEXITSTATUS(status));
	return fail_tool(tool, why, err);
}

/* Whether there is an NVIDIA display controller; true where the bus cannot be seen. */
static bool may_have_nvidia(const char *sysfs)
{
	AUTO_FREE char *dir = mem_printf("%s/bus/pci/devices", sysfs);
	AUTO_DIR DIR *stream = opendir(dir);
	struct dirent *entry;

	if (!stream)
		return true;
	while ((entry = readdir(stream))) {
		AUTO_FREE char *path = mem_printf("%s/%s/vendor", dir, entry->d_name);
		AUTO_FREE char *class = mem_printf("%s/%s/class", dir, entry->d_name);
		AUTO_BUF struct buf vendor_text = {0}, class_text = {0};

		if (fs_read(path, 64, &vendor_text, NULL, NULL) == 0 &&
			str_starts(vendor_text.data, "0x10de") &&
			fs_read(class, 64, &class_text, NULL, NULL) == 0 &&
			str_starts(class_text.data, "0x03"))
			return true;
	}
	return false;
}

static int find_nvidia(struct search *search, struct err *err)
{
	AUTO_FREE char *tool = proc_find("nvidia-smi", search->path);
	const char *list[] = {
		tool, "--query-gpu=" GPU_NVIDIA_QUERY, "--format=csv,noheader,nounits", NULL};
	const char *apps[] = {
		tool, "--query-compute-apps=" GPU_NVIDIA_APPS, "--format=csv,noheader", NULL};
	AUTO_BUF struct buf out = {0}, uses = {0};
	int status = 0;

	if (!tool)
		return 0;
	int r = gpu_run_tool(search, list, &out, &status, err);
	if (r < 0)
		return r;
	/* A login node has the tool, but neither driver nor GPU. */
	if (gpu_says_no_driver(out.data) && !may_have_nvidia(search->sysfs))
		return 0;
	r = gpu_parse_nvidia(out.data, out.len, &search->found, err);
	if (r == 0 && !strstr(out.data, "No devices"))
		r = check_silence(tool, status, &search->found, err);
	if (r < 0 || search->found.n == 0)
		return r;
	r = gpu_run_tool(search, apps, &uses, &status, err);
	if (r == 0)
		gpu_parse_nvidia_apps(uses.data, uses.len, &search->found);
	return r;
}

static int find_rocm(struct search *search, struct gpu_found_list *list, struct err *err)
{
	AUTO_FREE char *tool = proc_find("rocm-smi", search->path);
	const char *argv[] = {tool, "--showuniqueid", "--showproductname", "--showbus",
		"--showmeminfo", "vram", "--json", NULL};
	AUTO_BUF struct buf out = {0};
	int status = 0;

	if (!tool)
		return 0;
	int r = gpu_run_tool(search, argv, &out, &status, err);
	if (r < 0 || gpu_says_no_driver(out.data))
		return r;
	return gpu_parse_rocm(out.data, out.len, list, err);
}

/*
 * AMD's compute driver. Its nodes are counted as ROCR_VISIBLE_DEVICES counts.
 */

struct kfd_gpu {
	struct gpu_found found;
	unsigned long id; /* names the files of its users */
};
struct kfd {
	char *dir;
	struct kfd_gpu v[GPU_MAX];
	size_t n;
};

ERR_PRINTF(2, 3)
static bool read_kfd(struct buf *ret, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	AUTO_FREE char *path = mem_vprintf(fmt, args);
	va_end(args);
	return fs_read(path, GPU_KFD_MAX, ret, NULL, NULL) == 0;
}

static uint64_t kfd_memory(const char *dir, int node)
{
	uint64_t bytes = 0;

	for (int bank = 0; bank < KFD_BANKS_MAX; bank++) {
		AUTO_BUF struct buf text = {0};

		if (read_kfd(
			    &text, "%s/topology/nodes/%d/mem_banks/%d/properties", dir, node, bank))
			bytes += gpu_parse_kfd_bank(text.data, text.len);
	}
	return bytes & INT64_MAX;
}

static void add_kfd(struct kfd *kfd, int node)
{
	AUTO_BUF struct buf text = {0}, id = {0};
	struct kfd_gpu gpu = {.id = 0};

	/* A GPU that a container may not use cannot be read there, and is not counted. */
	if (!read_kfd(&text, "%s/topology/nodes/%d/properties", kfd->dir, node) ||
		!read_kfd(&id, "%s/topology/nodes/%d/gpu_id", kfd->dir, node) ||
		!gpu_parse_kfd(text.data, text.len, &gpu.found))
		return;
	gpu.id = strtoul(id.data, NULL, 10);
	gpu.found.gpu.index = (unsigned)kfd->n;
	gpu.found.gpu.memory_bytes = kfd_memory(kfd->dir, node);
	kfd->v[kfd->n++] = gpu;
}

/* Whether the process, a directory below proc, has memory of the GPU. */
static bool is_used_by(const char *dir, const char *process, unsigned long id)
{
	AUTO_BUF struct buf text = {0};

	return read_kfd(&text, "%s/proc/%s/vram_%lu", dir, process, id) &&
	       strtoull(text.data, NULL, 10) > 0;
}

static void mark_kfd_used(struct kfd *kfd)
{
	AUTO_FREE char *dir = fs_join(kfd->dir, "proc");
	AUTO_DIR DIR *stream = opendir(dir);
	struct dirent *entry;

	for (int n = 0; stream && n < PROCESSES_MAX && (entry = readdir(stream)); n++) {
		if (!str_is_digit(entry->d_name[0]))
			continue;
		for (size_t i = 0; i < kfd->n; i++)
			if (is_used_by(kfd->dir, entry->d_name, kfd->v[i].id))
				kfd->v[i].found.gpu.used = true;
	}
}

static void kfd_init(struct kfd *kfd, const char *sysfs)
{
	kfd->n = 0;
	kfd->dir = fs_join(sysfs, "class/kfd/kfd");
	if (access(kfd->dir, F_OK) < 0)
		return;
	for (int node = 0; node < KFD_NODES_MAX && kfd->n < GPU_MAX; node++)
		add_kfd(kfd, node);
	if (kfd->n > 0)
		mark_kfd_used(kfd);
}

static void kfd_done(struct kfd *kfd)
{
	free(kfd->dir);
}
#define AUTO_KFD AUTO(kfd_done)

/* rocm-smi may count devices that are no GPUs for ROCm, and does not report their users. */
static void complete_rocm(struct gpu_found_list *list, const struct kfd *kfd)
{
	const struct gpu_found_list said = *list;

	for (size_t i = 0; i < list->n; i++) {
		struct gpu *gpu = &list->v[i].gpu;

		gpu->index = 0;
		for (size_t k = 0; k < said.n; k++)
			gpu->index += said.v[k].gpu.index < said.v[i].gpu.index;
		for (size_t k = 0; k < kfd->n; k++)
			if (str_eq(kfd->v[k].found.pci, said.v[i].pci)) {
				gpu->index = kfd->v[k].found.gpu.index;
				gpu->used = kfd->v[k].found.gpu.used;
				break;
			}
	}
}

/* A GPU that is part of a processor, with a small part of its memory set apart, is left out: a run
 * would wait for it as for a GPU, which few programs mean. ROCm counts it. */
static int gpu_find_amd(struct search *search, struct err *err)
{
	AUTO_KFD struct kfd kfd;
	struct gpu_found_list list = {.n = 0};

	kfd_init(&kfd, search->sysfs);
	int r = find_rocm(search, &list, err);
	if (r < 0)
		return r;
	if (list.n)
		complete_rocm(&list, &kfd);
	else
		for (size_t i = 0; i < kfd.n; i++)
			list.v[list.n++] = kfd.v[i].found;
	if (search->found.n + list.n > GPU_MAX)
		return err_set(err, E_DATA_LIMIT, "this machine has more than %d GPUs", GPU_MAX);
	for (size_t i = 0; i < list.n; i++)
		if (!list.v[i].gpu.memory_bytes || list.v[i].gpu.memory_bytes >= INTEGRATED_BYTES)
			search->found.v[search->found.n++] = list.v[i];
	return 0;
}

/*
 * All
 */

int gpu_find_at(const char *path, const char *sysfs, int64_t timeout_ms, struct gpu_list *ret,
	struct err *err)
{
	struct search search = {
		.path = path, .sysfs = sysfs, .deadline_ms = clock_deadline(timeout_ms)};
	int r = find_nvidia(&search, err);

	if (r == 0)
		r = gpu_find_amd(&search, err);
	if (r == 0)
		r = gpu_found_finish(&search.found, ret, err);
	if (r < 0)
		err_hint(err, "to run without GPUs: dlrun submit -g 0");
	return r;
}

int gpu_find(const char *path, int64_t timeout_ms, struct gpu_list *ret, struct err *err)
{
	return gpu_find_at(path, SYSFS, timeout_ms, ret, err);
}

bool gpu_may_exist(const char *path)
{
	AUTO_FREE char *nvidia = proc_find("nvidia-smi", path);
	AUTO_FREE char *rocm = proc_find("rocm-smi", path);

	return nvidia || rocm || access(SYSFS "/class/kfd/kfd/topology", F_OK) == 0;
}
