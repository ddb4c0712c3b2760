#include "run/config.h"

/* Sorted as people read a file: what runs, with what, where. */
const struct config_key config_keys[] = {
	{"name", CONFIG_STRING, NULL, NULL, true,
		"Name of runs; the id is the name and five random characters. Default: the name of the "
		"program's file",
		"name: resnet"},
	{"target", CONFIG_STRING, "local", NULL, true,
		"Where runs go: `local` or a target defined below", "target: local"},
	{"command", CONFIG_COMMAND, NULL, NULL, false,
		"What runs when `submit` is given no command: a list of words, or a string for `sh -c`",
		"command: [python3, train.py]"},
	{"image", CONFIG_STRING, "scratch", NULL, true,
		"Base image that the code layers are put on: `scratch`, `oci:DIR[:TAG]` or, for a push to the "
		"same registry, `HOST/REPO[:TAG]`. The local target uses this machine's own programs and does "
		"not unpack it",
		"image: registry.example.com/base/pytorch:2.5"},
	{"workdir", CONFIG_STRING, "/dlrun/src", NULL, false,
		"Where the tree lies in an image; an absolute path. What a base has there is hidden",
		"workdir: /dlrun/src"},
	{"platform", CONFIG_STRING, "linux/amd64", NULL, false,
		"Platform picked from a base image that is an index, and of an image without a base",
		"platform: linux/arm64"},
	{"compression", CONFIG_ENUM, "gzip", "gzip zstd", true,
		"Compression of layers; zstd is faster, gzip is read by every runtime",
		"compression: zstd"},
	{"registry", CONFIG_REGISTRY, NULL, NULL, true,
		"Where images are pushed to: a repository, or a map. push: the repository; pull: the name that "
		"it has from where runs are; ca: a file with the issuers of its certificate, seen from the "
		"file that says so; insecure: true takes any certificate, and plain http. forward is for "
		"Kubernetes targets. A target may have its own. Another repository of the same host keeps ca "
		"and insecure",
		"registry: {push: registry.example.com/me/dlrun, ca: ca.pem}"},
	{"push_timeout", CONFIG_DURATION, "10m", NULL, true,
		"Time limit of one push. A server that is silent for 30 seconds is given up before that",
		"push_timeout: 30m"},
	{"env", CONFIG_ENV, NULL, NULL, false,
		"Variables of the program. A name without a value is taken from this shell; values of names "
		"that look like secrets are never written down",
		"env: {EPOCHS: \"10\", WANDB_PROJECT: }"},
	{"secrets", CONFIG_SECRETS, NULL, NULL, false,
		"Names of variables whose values only the program gets: from this shell, or from a file. They "
		"are in no record, log, image or argument",
		"secrets: [HF_TOKEN]"},
	{"before", CONFIG_STRING, NULL, NULL, false,
		"Lines for the shell (bash, else sh) that the program is started from, in front of it; a "
		"target may have its own",
		"before: source ~/venv/bin/activate"},
	{"setup", CONFIG_MAP, NULL, NULL, false,
		"What is run once, before the program, for each content of its key files",
		"setup: {run: uv sync --frozen, key: [uv.lock]}"},
	{"setup.run", CONFIG_STRING, NULL, NULL, false,
		"A line for sh, run where dlrun.yaml lies in a copy of the tree. What it makes there (.venv, "
		"node_modules) appears in every run with the same key",
		NULL},
	{"setup.key", CONFIG_LIST, NULL, NULL, false,
		"Paths of the tree whose contents decide whether it is run again", NULL},
	{"data", CONFIG_LIST, NULL, NULL, false,
		"Paths of the tree that git ignores and that stay where they are; the program finds them at "
		"the same place",
		"data: [data/imagenet]"},
	{"outputs", CONFIG_LIST, NULL, NULL, false,
		"Directories of the tree that the program writes to. They lie in $DLRUN_OUTPUT_DIR, so that "
		"results outlive attempts and are fetched",
		"outputs: [out, runs]"},
	{"paths", CONFIG_LIST, NULL, NULL, false,
		"Parts of the tree that the snapshot is limited to. Default: all of it",
		"paths: [lib/common, exp/vision]"},
	{"include", CONFIG_LIST, NULL, NULL, false,
		"Files and directories that git ignores but that are part of the code",
		"include: [data/vocab.txt]"},
	{"allow", CONFIG_LIST, NULL, NULL, false,
		"Files that may go although they look like secrets or are over a limit",
		"allow: [tests/fixtures/key.pem]"},
	{"limits", CONFIG_MAP, NULL, NULL, false, "What a snapshot may hold before it is refused",
		"limits: {size: 500Mi, files: 200000, file: 100Mi}"},
	{"limits.size", CONFIG_SIZE, "500Mi", NULL, false, "All files together", NULL},
	{"limits.files", CONFIG_INT, "200000", NULL, false, "Number of files", NULL},
	{"limits.file", CONFIG_SIZE, "100Mi", NULL, false, "One file", NULL},
	{"timeout", CONFIG_DURATION, NULL, NULL, true,
		"Time limit of the program; waiting does not count. Default: none", "timeout: 12h"},
	{"grace", CONFIG_DURATION, "10s", NULL, true,
		"Time between SIGTERM and SIGKILL when a run is stopped", "grace: 30s"},
	{"retries", CONFIG_INT, "0", NULL, true,
		"How often the program is started again after it failed, with the same outputs",
		"retries: 3"},
	{"signal", CONFIG_STRING, NULL, NULL, true,
		"A signal for the program some seconds before its time limit, so that it can save",
		"signal: USR1@90"},
	{"resources", CONFIG_MAP, NULL, NULL, false, "What a run needs", "resources: {gpus: 1}"},
	{"resources.gpus", CONFIG_INT, NULL, NULL, false,
		"GPUs. Default: one where the machine has any", NULL},
	{"group", CONFIG_STRING, NULL, NULL, false, "A word that runs of one study share",
		"group: ablation-3"},
	{"targets", CONFIG_TARGETS, NULL, NULL, false,
		"Named targets. The kind `local` is this machine",
		"targets: {here: {kind: local}}"},
};

const size_t config_keys_n = sizeof(config_keys) / sizeof(config_keys[0]);
