/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ids of every error that dlrun can show. A row: enum name, code (enum err_code without ERR_),
 * stable id. Ids are a contract: rows are added, never renamed. Sorted by id within a group. Their
 * sentences are in errlist.h.
 */
#ifndef DLRUN_BASE_UTIL_ERR_IDS_H
#define DLRUN_BASE_UTIL_ERR_IDS_H

/* clang-format off */
#define ERR_IDS(X) \
	/* the command line */ \
	X(E_USAGE, USAGE, "usage") \
	X(E_USAGE_COMMAND, USAGE, "usage.command") \
	X(E_USAGE_OPTION, USAGE, "usage.option") \
	/* configuration */ \
	X(E_CONFIG, CONFIG, "config") \
	X(E_CONFIG_KEY, CONFIG, "config.key") \
	X(E_CONFIG_SYNTAX, CONFIG, "config.syntax") \
	X(E_CONFIG_TRUST, CONFIG, "config.trust") \
	X(E_INIT_EXISTS, CONFLICT, "init.exists") \
	/* files and the machine */ \
	X(E_IO, IO, "io") \
	X(E_IO_CHANGED, IO, "io.changed") \
	X(E_IO_FULL, IO, "io.full") \
	X(E_IO_HOME, IO, "io.home") \
	X(E_IO_LOCK, CONFLICT, "io.lock") \
	X(E_IO_PERMISSION, AUTH, "io.permission") \
	X(E_IO_READ, IO, "io.read") \
	/* data in a form that dlrun does not take */ \
	X(E_DATA, IO, "data") \
	X(E_DATA_LIMIT, LIMIT, "data.limit") \
	X(E_DATA_PLACE, REMOTE, "data.place") \
	X(E_DATA_VERSION, NOTFOUND, "data.version") \
	/* the snapshot */ \
	X(E_SNAPSHOT_BARE, CONFIG, "snapshot.bare") \
	X(E_SNAPSHOT_EMPTY, CONFIG, "snapshot.empty") \
	X(E_SNAPSHOT_INCLUDE, USAGE, "snapshot.include") \
	X(E_SNAPSHOT_LIMIT, LIMIT, "snapshot.limit") \
	X(E_SNAPSHOT_LOOP, CONFIG, "snapshot.loop") \
	X(E_SNAPSHOT_NAME, LIMIT, "snapshot.name") \
	X(E_SNAPSHOT_OWNER, AUTH, "snapshot.owner") \
	X(E_SNAPSHOT_REPO, IO, "snapshot.repo") \
	X(E_SNAPSHOT_ROOT, USAGE, "snapshot.root") \
	X(E_SNAPSHOT_SECRET, LIMIT, "snapshot.secret") \
	/* images */ \
	X(E_IMAGE, REMOTE, "image") \
	X(E_IMAGE_ARCH, CONFIG, "image.arch") \
	X(E_IMAGE_BASE, NOTFOUND, "image.base") \
	X(E_IMAGE_DEPTH, CONFIG, "image.depth") \
	X(E_IMAGE_KIND, CONFIG, "image.kind") \
	X(E_IMAGE_NONE, USAGE, "image.none") \
	X(E_IMAGE_PLATFORM, NOTFOUND, "image.platform") \
	X(E_IMAGE_PULL, REMOTE, "image.pull") \
	X(E_IMAGE_PULL_AUTH, AUTH, "image.pull_auth") \
	X(E_IMAGE_PULL_NOT_FOUND, NOTFOUND, "image.pull_not_found") \
	X(E_IMAGE_REF, USAGE, "image.ref") \
	/* GPUs */ \
	X(E_GPU_COUNT, USAGE, "gpu.count") \
	X(E_GPU_LOCK, IO, "gpu.lock") \
	X(E_GPU_TOOL, IO, "gpu.tool") \
	/* secrets */ \
	X(E_SECRET, USAGE, "secret") \
	/* the code of runs */ \
	X(E_CHECKOUT_DIR, CONFLICT, "checkout.dir") \
	/* results */ \
	X(E_FETCH_KEPT, CONFLICT, "fetch.kept") \
	X(E_FETCH_PATH, NOTFOUND, "fetch.path") \
	/* TensorBoard */ \
	X(E_TENSORBOARD_EMPTY, NOTFOUND, "tensorboard.empty") \
	X(E_TENSORBOARD_ENDED, IO, "tensorboard.ended") \
	X(E_TENSORBOARD_MISSING, NOTFOUND, "tensorboard.missing") \
	X(E_TENSORBOARD_PKG_RESOURCES, CONFIG, "tensorboard.pkg_resources") \
	X(E_TENSORBOARD_START, IO, "tensorboard.start") \
	/* the server for the browser */ \
	X(E_HTTPD_HEAD, REMOTE, "front.head") \
	/* event files */ \
	X(E_EVENTS_DIR, NOTFOUND, "events.dir") \
	X(E_EVENTS_NONE, NOTFOUND, "events.none") \
	X(E_EVENTS_TAG, NOTFOUND, "events.tag") \
	/* HTTP */ \
	X(E_HTTP_CA, CONFIG, "http.ca") \
	X(E_HTTP_CERT, CONFIG, "http.cert") \
	X(E_HTTP_CLOSED, NET, "http.closed") \
	X(E_HTTP_CONNECT, NET, "http.connect") \
	X(E_HTTP_LIMIT, LIMIT, "http.limit") \
	X(E_HTTP_PROTOCOL, REMOTE, "http.protocol") \
	X(E_HTTP_PROXY, NET, "http.proxy") \
	X(E_HTTP_REDIRECT, REMOTE, "http.redirect") \
	X(E_HTTP_RESOLVE, NET, "http.resolve") \
	X(E_HTTP_TIMEOUT, NET, "http.timeout") \
	X(E_HTTP_TLS, NET, "http.tls") \
	X(E_HTTP_URL, REMOTE, "http.url") \
	X(E_HTTP_ZONE, REMOTE, "http.zone") \
	X(E_LISTEN, IO, "listen") \
	X(E_LISTEN_TAKEN, CONFLICT, "listen.taken") \
	/* registries */ \
	X(E_REGISTRY_RESPONSE, REMOTE, "registry.answer") \
	X(E_REGISTRY_AUTH, AUTH, "registry.auth") \
	X(E_REGISTRY_DENIED, AUTH, "registry.denied") \
	X(E_REGISTRY_FULL, LIMIT, "registry.full") \
	X(E_REGISTRY_HELPER, AUTH, "registry.helper") \
	X(E_REGISTRY_INSECURE, CONFIG, "registry.insecure") \
	X(E_REGISTRY_MOUNT, CONFIG, "registry.mount") \
	X(E_REGISTRY_NOT_FOUND, NOTFOUND, "registry.not_found") \
	X(E_REGISTRY_REALM, AUTH, "registry.realm") \
	X(E_REGISTRY_TIMEOUT, NET, "registry.timeout") \
	X(E_REGISTRY_UNREACHABLE, NET, "registry.unreachable") \
	X(E_REGISTRY_UNSUPPORTED, REMOTE, "registry.unsupported") \
	/* S3 */ \
	X(E_S3_RESPONSE, REMOTE, "bucket.answer") \
	X(E_S3_AUTH, AUTH, "bucket.auth") \
	X(E_S3_BUSY, NET, "bucket.busy") \
	X(E_S3_CHANGED, CONFLICT, "bucket.changed") \
	X(E_S3_CONFIG, CONFIG, "bucket.config") \
	X(E_S3_CREDENTIALS, AUTH, "bucket.credentials") \
	X(E_S3_DENIED, AUTH, "bucket.denied") \
	X(E_S3_NOT_FOUND, NOTFOUND, "bucket.not_found") \
	/* clusters */ \
	X(E_KUBE_RESPONSE, REMOTE, "kube.answer") \
	X(E_KUBE_AUTH, AUTH, "kube.auth") \
	X(E_KUBE_BUSY, NET, "kube.busy") \
	X(E_KUBE_CONFIG, CONFIG, "kube.config") \
	X(E_KUBE_CONFLICT, CONFLICT, "kube.conflict") \
	X(E_KUBE_CONTEXT, CONFIG, "kube.context") \
	X(E_KUBE_DENIED, AUTH, "kube.denied") \
	X(E_KUBE_EXISTS, CONFLICT, "kube.exists") \
	X(E_KUBE_EXEC, REMOTE, "kube.exec") \
	X(E_KUBE_FORWARD, NET, "kube.forward") \
	X(E_KUBE_GONE, REMOTE, "kube.gone") \
	X(E_KUBE_HOST_PATH, CONFIG, "kube.host_path") \
	X(E_KUBE_INVALID, REMOTE, "kube.invalid") \
	X(E_KUBE_NAME, CONFIG, "kube.name") \
	X(E_KUBE_NOT_FOUND, NOTFOUND, "kube.not_found") \
	X(E_KUBE_NO_CONFIG, CONFIG, "kube.no_config") \
	X(E_KUBE_OVERLAY, CONFIG, "kube.overlay") \
	X(E_KUBE_PLUGIN, AUTH, "kube.plugin") \
	X(E_KUBE_SERVER, REMOTE, "kube.server") \
	X(E_KUBE_SHELL, CONFIG, "kube.shell") \
	X(E_KUBE_STORAGE, CONFIG, "kube.storage") \
	X(E_KUBE_UNREACHABLE, NET, "kube.unreachable") \
	/* nodes */ \
	X(E_NODE_BUSY, CONFLICT, "node.busy") \
	X(E_NODE_CORRUPT, REMOTE, "node.corrupt") \
	X(E_NODE_DISK, LIMIT, "node.disk") \
	X(E_NODE_FAILED, REMOTE, "node.failed") \
	X(E_NODE_LOST, NET, "node.lost") \
	X(E_NODE_PROTOCOL, REMOTE, "node.protocol") \
	X(E_NODE_ROOT, CONFIG, "node.root") \
	X(E_NODE_SHELL, REMOTE, "node.shell") \
	X(E_NODE_TOOL, CONFIG, "node.tool") \
	/* ssh */ \
	X(E_SSH_CONFIG, CONFIG, "ssh.config") \
	X(E_SSH_HOST_KEY, AUTH, "ssh.host_key") \
	X(E_SSH_LOGIN, AUTH, "ssh.login") \
	X(E_SSH_LOST, NET, "ssh.lost") \
	X(E_SSH_PORT, REMOTE, "ssh.port") \
	X(E_SSH_REFUSED, REMOTE, "ssh.refused") \
	X(E_SSH_UNKNOWN_HOST, AUTH, "ssh.unknown_host") \
	X(E_SSH_UNREACHABLE, NET, "ssh.unreachable") \
	/* jobs of clusters */ \
	X(E_JOB_CONFIG, CONFIG, "job.config") \
	X(E_JOB_DENIED, AUTH, "job.denied") \
	X(E_JOB_EVICTED, REMOTE, "job.evicted") \
	X(E_JOB_FAILED, REMOTE, "job.failed") \
	X(E_JOB_NODE, REMOTE, "job.node") \
	X(E_JOB_OOM, LIMIT, "job.oom") \
	X(E_JOB_PREEMPTED, REMOTE, "job.preempted") \
	X(E_JOB_REJECTED, REMOTE, "job.rejected") \
	X(E_JOB_START, REMOTE, "job.start") \
	X(E_JOB_VOLUME, CONFIG, "job.volume") \
	/* waiting for a place */ \
	X(E_SCHED, REMOTE, "sched") \
	X(E_SCHED_ARCH, CONFIG, "sched.arch") \
	X(E_SCHED_CPU, LIMIT, "sched.cpu") \
	X(E_SCHED_DISK, LIMIT, "sched.disk") \
	X(E_SCHED_GPU, LIMIT, "sched.gpu") \
	X(E_SCHED_IMPOSSIBLE, LIMIT, "sched.impossible") \
	X(E_SCHED_MEMORY, LIMIT, "sched.memory") \
	X(E_SCHED_QUEUE, REMOTE, "sched.queue") \
	X(E_SCHED_QUOTA, LIMIT, "sched.quota") \
	X(E_SCHED_SELECTOR, CONFIG, "sched.selector") \
	X(E_SCHED_SUSPENDED, REMOTE, "sched.suspended") \
	X(E_SCHED_TAINT, CONFIG, "sched.taint") \
	X(E_SCHED_VOLUME, CONFIG, "sched.volume") \
	/* commands beside a run */ \
	X(E_EXEC_NOT_EXECUTABLE, NOEXEC, "exec.not_executable") \
	X(E_EXEC_NOT_FOUND, NOCMD, "exec.not_found") \
	/* runs */ \
	X(E_RUN_AFTER, CONFLICT, "run.after") \
	X(E_RUN_COMMAND, USAGE, "run.command") \
	X(E_RUN_DATA, CONFIG, "run.data") \
	X(E_RUN_ENDED, CONFLICT, "run.ended") \
	X(E_RUN_EXEC, NOTFOUND, "run.exec") \
	X(E_RUN_FAILED, REMOTE, "run.failed") \
	X(E_RUN_LOG, NOTFOUND, "run.log") \
	X(E_RUN_LOST, REMOTE, "run.lost") \
	X(E_RUN_NAME, USAGE, "run.name") \
	X(E_RUN_NOT_FOUND, NOTFOUND, "run.not_found") \
	X(E_RUN_OTHER, AUTH, "run.other") \
	X(E_RUN_OUTPUTS, CONFIG, "run.outputs") \
	X(E_RUN_RUNNING, CONFLICT, "run.running") \
	X(E_RUN_SETUP, CONFIG, "run.setup") \
	X(E_RUN_START, IO, "run.start") \
	X(E_RUN_STUDY, USAGE, "run.study") \
	X(E_RUN_TIMEOUT, REMOTE, "run.timeout") \
	X(E_STORE, IO, "store") \
	X(E_STORE_CHANGED, CONFLICT, "store.changed") \
	X(E_STORE_VERSION, CONFIG, "store.version") \
	/* targets */ \
	X(E_TARGET, USAGE, "target") \
	X(E_TARGET_OTHER, CONFIG, "target.other") \
	X(E_TARGET_SILENT, NET, "target.silent") \
	X(E_TARGET_UNSUPPORTED, USAGE, "target.unsupported") \
	/* autoscaling */ \
	X(E_SCALE_LEASE, CONFLICT, "autoscale.lease") \
	X(E_SCALE_PROVIDER, REMOTE, "autoscale.provider") \
	X(E_SCALE_SETTINGS, CONFIG, "autoscale.settings") \
	X(E_SCALE_SNAPSHOT, CONFIG, "autoscale.snapshot") \
	/* the rest */ \
	X(E_CANCELED, CANCELED, "cancelled") \
	X(E_BUG, BUG, "bug")
/* clang-format on */

#endif
