/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text for every error, what it means and what to do. With err_ids.h it is the source of messages,
 * `dlrun explain` and dlrun-errors(7). A row: enum name, title, text; one for each row of
 * err_ids.h, in its order. Only err.c includes this file, so that fixing a sentence does not
 * rebuild everything.
 */
#ifndef DLRUN_BASE_UTIL_ERRLIST_H
#define DLRUN_BASE_UTIL_ERRLIST_H

/* clang-format off */
#define ERR_TEXTS(X) \
	/* the command line */ \
	X(E_USAGE, "invalid command line", \
	  "An option or argument is missing, unknown or not of the form that the command takes. " \
	  "`dlrun COMMAND -h` shows its options with examples.") \
	X(E_USAGE_COMMAND, "there is no such command", \
	  "`dlrun help` lists the commands. A program named dlrun-NAME on PATH is run as `dlrun NAME`.") \
	X(E_USAGE_OPTION, "there is no such option", \
	  "`dlrun COMMAND -h` shows the options of a command. Words for the program go behind `--`.") \
	/* configuration */ \
	X(E_CONFIG, "invalid configuration", \
	  "The message names the file and line. dlrun.yaml(5) lists the keys and their types; " \
	  "`dlrun config --show-origin` shows every value and where it comes from.") \
	X(E_CONFIG_KEY, "a key of the configuration is not known", \
	  "An unknown key is an error, because a misspelt one would silently do nothing. " \
	  "dlrun.yaml(5) lists the keys.") \
	X(E_CONFIG_SYNTAX, "a configuration file is not valid YAML", \
	  "The file is read as YAML 1.1 with limits: 1 MiB, 64 levels, no duplicate keys, no aliases.") \
	X(E_CONFIG_TRUST, "a project's file sets what only you may set", \
	  "Keys that name programs, files outside of the tree or where credentials go, or that weaken transport, " \
	  "count from your own configuration. From a dlrun.yaml they count once you have confirmed this " \
	  "content of it: `dlrun config trust` shows them and asks. dlrun.yaml(5) has the list.") \
	X(E_INIT_EXISTS, "there is a configuration already", \
	  "`dlrun init` never writes over a dlrun.yaml. `dlrun init --print` shows what it would write; " \
	  "with --force it does, and keeps the old one as dlrun.yaml~.") \
	/* files and the machine */ \
	X(E_IO, "a local file or process could not be used", \
	  "The message names the path and what the system said.") \
	X(E_IO_CHANGED, "a file kept changing while it was read", \
	  "A snapshot holds the bytes of one moment for each file. The named file changed during each of " \
	  "several tries. Stop its writer, or put the path into .dlrunignore.") \
	X(E_IO_FULL, "no space is left", \
	  "The named directory is on a full disk, or a quota is used up. `dlrun gc` frees what dlrun no " \
	  "longer needs; XDG_STATE_HOME, XDG_CACHE_HOME and XDG_DATA_HOME move its directories.") \
	X(E_IO_HOME, "dlrun does not know where to keep its files", \
	  "HOME is not set, and not all of XDG_STATE_HOME, XDG_CACHE_HOME and XDG_DATA_HOME are.") \
	X(E_IO_LOCK, "another dlrun holds a lock for too long", \
	  "A dlrun process holds the named file. It is released when that process ends.") \
	X(E_IO_PERMISSION, "the system does not allow it", \
	  "The message names the path. Directories of dlrun must belong to you and be closed to others.") \
	X(E_IO_READ, "a file of the working tree cannot be read", \
	  "Every file of the snapshot must be readable, or what runs would not be what you see. " \
	  "Mend its permissions, or put the path into .dlrunignore.") \
	/* data in a form that dlrun does not take */ \
	X(E_DATA, "a file has an unexpected format", \
	  "A file that dlrun keeps or reads is damaged or was written by another program.") \
	X(E_DATA_LIMIT, "something is larger than dlrun accepts", \
	  "Everything that can grow has a ceiling; the message names it.") \
	X(E_DATA_PLACE, "data cannot be kept there, or cannot be removed", \
	  "`dlrun data push` keeps versions in the directory or volume that the target's `data:` names. It wants to write " \
	  "there, and a place that has nothing but versions: files that others have put there are not touched. What was " \
	  "sent before the failure does not travel again, unless there was no room for all of it: then it is removed. A " \
	  "version that a run of yours reads is not removed before that has ended.") \
	X(E_DATA_VERSION, "there is no such version of the data", \
	  "`dlrun data ls` shows what a target has. The name of a version may be cut short where that is unique.") \
	/* the snapshot */ \
	X(E_SNAPSHOT_BARE, "a bare repository has no files to run", \
	  "Run dlrun in a working tree: `git clone` or `git worktree add` makes one.") \
	X(E_SNAPSHOT_EMPTY, "the snapshot would hold no file", \
	  "Everything is ignored, or `paths:` names nothing that exists. `dlrun submit --dry-run " \
	  "--list-files` shows what is excluded and why.") \
	X(E_SNAPSHOT_INCLUDE, "an --include or paths: entry matches nothing", \
	  "The named path does not exist in the working tree. Paths are relative to the root of the working tree.") \
	X(E_SNAPSHOT_LIMIT, "the working tree is over a limit", \
	  "Large trees are refused before a byte leaves, with the largest files and directories named. " \
	  "Ignore data in .gitignore or .dlrunignore, allow a path with --allow, or raise `limits:`.") \
	X(E_SNAPSHOT_LOOP, "a directory is mounted inside itself", \
	  "The named directory is one that it lies in, so the tree has no end. Unmount it, or put it into " \
	  ".dlrunignore.") \
	X(E_SNAPSHOT_NAME, "a path cannot be put into an image", \
	  "Names that start with .wh. mean deletions in image layers; paths over 4,095 bytes cannot be " \
	  "opened. Rename the file, or put it into .dlrunignore.") \
	X(E_SNAPSHOT_OWNER, "the repository belongs to another user", \
	  "git and dlrun do not read repositories of other users, because their configuration could run " \
	  "programs. `git config --global --add safe.directory DIR` says that you trust it.") \
	X(E_SNAPSHOT_REPO, "the repository cannot be read", \
	  "The message says what git found wrong.") \
	X(E_SNAPSHOT_ROOT, "this directory is too large for a snapshot", \
	  "/ and your home directory are refused. Change to the project, or use -C DIR; a dlrun.yaml or a " \
	  "git repository marks where a tree begins.") \
	X(E_SNAPSHOT_SECRET, "untracked files look like secrets", \
	  "Private keys, .env files, kubeconfigs and cloud credentials are refused before a byte leaves. " \
	  "Put them into .gitignore or .dlrunignore, or allow one by name: --allow PATH.") \
	/* images */ \
	X(E_IMAGE, "an image is not valid", \
	  "A manifest, configuration or layer does not have the form of the OCI image specification, " \
	  "or its digest does not match.") \
	X(E_IMAGE_ARCH, "the image is for another CPU architecture", \
	  "The CPU architecture of the node differs from that of the image. `platform:` of the target picks the variant " \
	  "of the base image (linux/amd64, linux/arm64); dlrun then keeps the run to such nodes.") \
	X(E_IMAGE_BASE, "the base image was not found", \
	  "The message names the reference. `oci:DIR[:TAG]` is an OCI image layout on disk, `scratch` is no " \
	  "base at all.") \
	X(E_IMAGE_DEPTH, "the image would have too many layers", \
	  "Runtimes take about 127 layers; dlrun adds up to three, one of an environment, and up to about 48 of each " \
	  "directory of data with sync. A base image is made one layer by `podman build --squash-all` or `buildah " \
	  "build --squash`, which keep its settings; data in many large directories goes beside the image: `dlrun data " \
	  "push`.") \
	X(E_IMAGE_KIND, "the base is not an image that can run", \
	  "It is an artifact (a chart, a signature, a model), or a manifest of schema 1 as registries made them " \
	  "before 2017. Name an image with --image, or pull and push the old one with a current docker.") \
	X(E_IMAGE_NONE, "no image holds what the program needs", \
	  "A cluster runs the program in a container, which has the programs of the base image and the tree, and " \
	  "nothing of this machine. Name a base that has the interpreter, with --image or `image:`; `scratch`, no " \
	  "base at all, is enough for a statically linked program of the working tree. The layers of a base on this machine are searched for " \
	  "the program; of one in a registry only the configuration is read, and what that leaves open is not refused.") \
	X(E_IMAGE_PLATFORM, "the base image has no such platform", \
	  "The base is an index without a manifest for the platform of the target.") \
	X(E_IMAGE_PULL, "the node cannot pull the image", \
	  "The node itself, not this machine, fetches the image from the registry. It must be able to resolve, reach " \
	  "and trust it; what it said is shown. The cluster tries again by itself.") \
	X(E_IMAGE_PULL_AUTH, "the node may not pull the image", \
	  "The registry wants a login from the node. `image_pull_secret:` of the target names a Secret of type " \
	  "kubernetes.io/dockerconfigjson in the namespace of the run; `kubectl create secret docker-registry` makes " \
	  "one. Registries say the same of repositories that do not exist.") \
	X(E_IMAGE_PULL_NOT_FOUND, "the node finds no such image", \
	  "The registry has no such repository, tag or digest at the address that the node uses. When push and pull " \
	  "addresses differ (`registry: {push: …, pull: …}`), both must lead to the same registry.") \
	X(E_IMAGE_REF, "a reference to an image is not valid", \
	  "Forms: scratch, oci:DIR, oci:DIR:TAG, oci:DIR@sha256:HEX, HOST/REPO:TAG, HOST/REPO@sha256:HEX.") \
	/* GPUs */ \
	X(E_GPU_COUNT, "there are not so many GPUs", \
	  "More GPUs are asked for than the machine has, or than CUDA_VISIBLE_DEVICES of this shell allows. " \
	  "It would wait forever. `dlrun doctor` lists them.") \
	X(E_GPU_LOCK, "the queue for GPUs cannot be used", \
	  "GPUs are given out by locks on files in a directory that all users of the machine share. The message " \
	  "names it.") \
	X(E_GPU_TOOL, "the GPUs cannot be listed", \
	  "nvidia-smi or rocm-smi is there and fails. Its own message is shown; `-g 0` runs without GPUs.") \
	/* secrets */ \
	X(E_SECRET, "a secret has no value", \
	  "Its value comes from the variable of that name in this shell, or from a file by NAME=@FILE. " \
	  "Values on a command line would be seen by everybody.") \
	/* the code of runs */ \
	X(E_CHECKOUT_DIR, "the directory to check out into is not free", \
	  "`dlrun checkout` makes the directory, or takes one that is empty and not the current one. It " \
	  "never adds to files that are there.") \
	/* results */ \
	X(E_FETCH_KEPT, "files that are there were not replaced", \
	  "`dlrun fetch` replaces files that it has written itself and nobody has changed since. All " \
	  "other results were fetched. Fetch into another directory, or replace them with --force.") \
	X(E_FETCH_PATH, "the results of the run have no such path", \
	  "Paths are those in the run's tree or in $DLRUN_OUTPUT_DIR; patterns with *, ? and ** are " \
	  "matched there. All that " \
	  "the other paths name was fetched.") \
	/* TensorBoard */ \
	X(E_TENSORBOARD_EMPTY, "the run has no event files", \
	  "Event files (names with \"tfevents\") are found anywhere in the results of a run: in the tree " \
	  "that its program runs in, and in $DLRUN_OUTPUT_DIR. `collect:` of dlrun.yaml may exclude them.") \
	X(E_TENSORBOARD_ENDED, "TensorBoard ended while it was looked at", \
	  "The evidence holds its last lines. Runs are not touched. `dlrun plot` draws the same curves " \
	  "without it.") \
	X(E_TENSORBOARD_MISSING, "there is no TensorBoard", \
	  "dlrun starts your own one: of the active environment (VIRTUAL_ENV, .venv of the tree, conda), " \
	  "of PATH, or of ~/.local/bin; with --remote that of the program. It downloads nothing. `dlrun " \
	  "plot` draws the same curves without it.") \
	X(E_TENSORBOARD_PKG_RESOURCES, \
	  "TensorBoard is too old for the setuptools beside it", \
	  "TensorBoard up to 2.20 needs pkg_resources, which setuptools 82 does not have any more. " \
	  "TensorBoard 2.21 does without.") \
	X(E_TENSORBOARD_START, "TensorBoard does not start", \
	  "The evidence holds its last lines; -v shows all of them. Mostly a package beside it is too " \
	  "new or too old for it. `dlrun plot` draws the same curves without it.") \
	/* the server for the browser */ \
	X(E_HTTPD_HEAD, "a request or an answer is not HTTP/1.1 as it should be", \
	  "Programs may read such a one in different ways, so dlrun does not pass it on.") \
	/* event files */ \
	X(E_EVENTS_DIR, "there is no such directory of event files", \
	  "`dlrun plot` takes runs, and directories in which TensorBoard event files lie at any depth. A word " \
	  "with a slash is a directory.") \
	X(E_EVENTS_NONE, "there are no curves", \
	  "Curves come from TensorBoard event files (SummaryWriter, Keras, Lightning, tf.summary): files with " \
	  "`tfevents` in their name, anywhere below $DLRUN_OUTPUT_DIR or the directories that `outputs:` names. " \
	  "Writers keep values for up to two minutes before they write them.") \
	X(E_EVENTS_TAG, "no scalar has that name", \
	  "`--tag` takes the name of a scalar, or a pattern with *, ? and [...], which match slashes, too. The " \
	  "message lists those that there are.") \
	/* HTTP */ \
	X(E_HTTP_CA, "a file of CA certificates cannot be read", \
	  "`ca:` of a registry or SSL_CERT_FILE names it. It must contain PEM certificates.") \
	X(E_HTTP_CERT, "a client certificate cannot be used", \
	  "`cert:` and `key:` of a registry name it, or it is in /etc/docker/certs.d/HOST (NAME.cert, NAME.key), or in a kubeconfig. " \
	  "Both are PEM files that you may read; the key has no passphrase.") \
	X(E_HTTP_CLOSED, "the connection ended too early", \
	  "The server, or something between here and it, closed the connection in the middle of an answer.") \
	X(E_HTTP_CONNECT, "the server cannot be reached", \
	  "Nothing accepts connections at the named host and port, or a firewall drops them.") \
	X(E_HTTP_LIMIT, "an answer is larger than dlrun accepts", \
	  "Everything that a server sends has a ceiling; the message names it.") \
	X(E_HTTP_PROTOCOL, "the server does not speak HTTP as it should", \
	  "Something else than a web server listens there, or a proxy changed the answer.") \
	X(E_HTTP_PROXY, "the proxy cannot be used", \
	  "HTTPS_PROXY, https_proxy, ALL_PROXY or http_proxy names it; NO_PROXY lists the hosts that are asked " \
	  "without it.") \
	X(E_HTTP_REDIRECT, "a redirect was refused", \
	  "Servers may send a request on up to five times, and never from https to http.") \
	X(E_HTTP_RESOLVE, "the name of the server cannot be looked up", \
	  "There is no such host name, or the name service does not answer.") \
	X(E_HTTP_TIMEOUT, "the server took too long", \
	  "Connecting, a pause within an exchange, and a whole command have limits; the message says which.") \
	X(E_HTTP_TLS, "the certificate of the server is not accepted", \
	  "The name in it is another one, it has expired, or its issuer is not known here. `ca:` of the " \
	  "registry in the configuration, SSL_CERT_FILE, or AWS_CA_BUNDLE for S3 names a file with " \
	  "issuers.") \
	X(E_HTTP_URL, "a URL is not valid", \
	  "Only http and https URLs without a user name are used.") \
	X(E_HTTP_ZONE, "a server points into a network that it has no business with", \
	  "Addresses that a server gives may not lead to this machine, to a private network or to the metadata " \
	  "service of a cloud, unless the server is there itself. Nothing was sent to it.") \
	X(E_LISTEN, "no connections can be taken at an address of this machine", \
	  "The address is not one of this machine, or ports under 1024 are for root.") \
	X(E_LISTEN_TAKEN, "a port of this machine is taken", \
	  "Another program listens there. Name another port, or 0 for any that is free.") \
	/* registries */ \
	X(E_REGISTRY_RESPONSE, "the registry gave an answer that makes no sense", \
	  "The answer is not one of the OCI distribution specification, or the digest in it is wrong. Its " \
	  "status and its first line are shown.") \
	X(E_REGISTRY_AUTH, "the registry does not accept the login", \
	  "There is no login for it, or it is wrong or has expired. `docker login HOST`, `podman login HOST` or " \
	  "the registry's own tool stores a new one.") \
	X(E_REGISTRY_DENIED, "the registry does not allow it", \
	  "The login is good, but not for this: the message names the repository and what was asked for.") \
	X(E_REGISTRY_FULL, "the registry takes no more", \
	  "A quota is used up, its disk is full, or a layer is larger than it accepts.") \
	X(E_REGISTRY_HELPER, "the credential helper failed", \
	  "credHelpers or credsStore in the login file names a program docker-credential-NAME. It printed " \
	  "something else than a login, or took more than 10 seconds.") \
	X(E_REGISTRY_INSECURE, "the registry would be asked without TLS", \
	  "Plain http is used for this machine only. `insecure: true` of the registry in the configuration " \
	  "allows it elsewhere.") \
	X(E_REGISTRY_MOUNT, "the base image cannot be used from there", \
	  "Base layers never pass through this machine: the registry itself must have them. Push the base to " \
	  "it once, or let --copy-base copy it from registry to registry.") \
	X(E_REGISTRY_NOT_FOUND, "the registry has no such repository or image", \
	  "The message names it. Some registries say so, too, when they do not want to say that it is not " \
	  "allowed; some want repositories to be made before the first push.") \
	X(E_REGISTRY_REALM, "the registry wants its login sent to another site", \
	  "A login goes to the registry that it is for and to a token server of the same site: the same host, or " \
	  "one of the same registered domain, over https. `registry_realms: [HOST]` in your own configuration " \
	  "names others that you trust with it. Nothing was sent.") \
	X(E_REGISTRY_TIMEOUT, "the push took too long", \
	  "`push_timeout:` (10m) limits a whole push, and that of an environment or of data where it is set. What " \
	  "was uploaded stays known, and the next push goes on from there.") \
	X(E_REGISTRY_UNREACHABLE, "the registry cannot be reached", \
	  "It was tried several times. The message says what happened last.") \
	X(E_REGISTRY_UNSUPPORTED, "the registry cannot do this", \
	  "Not every registry lets its clients delete images. Most have rules of their own for that; distribution " \
	  "has to be told to (storage.delete.enabled).") \
	/* S3 */ \
	X(E_S3_RESPONSE, "S3 responded with something else", \
	  "The server behind the S3 endpoint sent an error that dlrun does not know, or no S3 protocol at all. " \
	  "AWS_ENDPOINT_URL_S3 and the profile name the endpoint.") \
	X(E_S3_AUTH, "S3 refuses the keys", \
	  "The keys are not known there, have expired, or do not match the secret. The evidence says where they come " \
	  "from; `aws sts get-caller-identity` tries them. Where the clock of this machine is wrong, the server's is " \
	  "used once.") \
	X(E_S3_BUSY, "S3 was too busy", \
	  "The server asked to slow down, or failed, in each of several tries with growing waits.") \
	X(E_S3_CHANGED, "an object in S3 was replaced meanwhile", \
	  "The object is another one than when it was listed, or what was sent is gone. Try again.") \
	X(E_S3_CONFIG, "the settings for S3 are not valid", \
	  "An address is s3://BUCKET/PATH. AWS_PROFILE names a profile of ~/.aws/config or ~/.aws/credentials.") \
	X(E_S3_CREDENTIALS, "there are no keys for S3", \
	  "dlrun takes them from where AWS's tools do: the environment (AWS_ACCESS_KEY_ID), a web identity, the files " \
	  "of ~/.aws with credential_process, the container, the instance. For logins by SSO or another role it runs " \
	  "`aws configure export-credentials`.") \
	X(E_S3_DENIED, "S3 does not allow it", \
	  "The keys are good, but their user or role may not do this. Without the right to list a bucket, a missing " \
	  "object is refused in the same way.") \
	X(E_S3_NOT_FOUND, "a bucket or object is not there", \
	  "The message names it. dlrun makes no buckets.") \
	/* clusters */ \
	X(E_KUBE_RESPONSE, "the cluster gave an answer that makes no sense", \
	  "Something between here and the API server changed the answer, or something else listens there. Its " \
	  "status and its first line are shown.") \
	X(E_KUBE_AUTH, "the login for the cluster does not work", \
	  "The API server does not accept the certificate or token of the kubeconfig, or the program that makes " \
	  "them failed. Its own message is shown.") \
	X(E_KUBE_BUSY, "the cluster is too busy", \
	  "The API server limits how much it does at a time (429). It was asked again until the time limit.") \
	X(E_KUBE_CONFIG, "a kubeconfig cannot be used", \
	  "The message names the file. `kubectl config view` shows what kubectl makes of it.") \
	X(E_KUBE_CONFLICT, "the object was changed by somebody else", \
	  "Two programs changed the same object of the cluster at the same time. Repeat the command.") \
	X(E_KUBE_CONTEXT, "the kubeconfig has no such context", \
	  "`kubectl config get-contexts` lists them; `context:` of the target or kube:CONTEXT names one.") \
	X(E_KUBE_DENIED, "the cluster does not allow it", \
	  "The login is good, but its roles do not allow this in that namespace. `dlrun init --rbac` prints the " \
	  "smallest Role for each use of dlrun.") \
	X(E_KUBE_EXISTS, "the cluster has an object of that name already", \
	  "It does not belong to this run.") \
	X(E_KUBE_EXEC, "a command cannot be run in the pod", \
	  "The pod is there, but its node or container runtime did not start the command, or the connection to it " \
	  "ended before the command did. What they said is shown.") \
	X(E_KUBE_FORWARD, "a port of the pod cannot be reached", \
	  "The connection got as far as the pod, and nothing listens there on that port, or it was cut. A program " \
	  "must listen on 127.0.0.1 or all addresses of its pod; dlrun waits ten seconds for it to begin.") \
	X(E_KUBE_GONE, "the cluster does not know any more what was asked for", \
	  "A list or watch was continued too late. It is begun again by itself.") \
	X(E_KUBE_HOST_PATH, "a directory of the node is not given to runs", \
	  "What one run changes there, all others on that node see, and most clusters forbid it. `host_path: " \
	  "true` of the target allows it; a claim or NFS needs no leave.") \
	X(E_KUBE_INVALID, "the cluster does not accept the object", \
	  "The API server or an admission webhook names the fields that are off. `dlrun submit --dry-run -o yaml` " \
	  "prints what would be sent.") \
	X(E_KUBE_NAME, "a name cannot be that of an object of a cluster", \
	  "Names of objects have up to 63 of a-z, 0-9 and -, and begin and end with a letter or digit. The message " \
	  "says which one is off.") \
	X(E_KUBE_NOT_FOUND, "the cluster has no such object", \
	  "It was never there, or was removed. The message names it.") \
	X(E_KUBE_NO_CONFIG, "there is no kubeconfig", \
	  "Neither KUBECONFIG nor ~/.kube/config names a cluster. Whoever runs the cluster tells how to get one.") \
	X(E_KUBE_OVERLAY, "the pod overlay cannot be used", \
	  "`overlay:` of the target names a YAML file that is laid over the pods of its runs. It may not change what " \
	  "dlrun finds its runs by: names, dlrun's own labels, the program's name, restartPolicy.") \
	X(E_KUBE_PLUGIN, "the program that logs in to the cluster cannot be used", \
	  "`exec:` of the kubeconfig names a program. It is not installed, was not allowed, failed, or printed " \
	  "something else than an ExecCredential.") \
	X(E_KUBE_SERVER, "the cluster failed", \
	  "The API server answered with an error of its own. Its message is shown.") \
	X(E_KUBE_SHELL, "the image has no shell, and the run needs one", \
	  "An image made from scratch has nothing but the tree. Programs of it are started as they are; before:, " \
	  "setup:, --signal and commands for the shell need a base image with /bin/sh.") \
	X(E_KUBE_STORAGE, "storage of the run cannot be had in a pod", \
	  "The message names the path or volume. Namespaces with Pod Security take only some kinds of volumes: claims " \
	  "everywhere, NFS not in restricted ones, directories of the node only in privileged ones.") \
	X(E_KUBE_UNREACHABLE, "the cluster cannot be reached", \
	  "Nothing answers at the server of the kubeconfig. Is the VPN up? Runs go on meanwhile.") \
	/* nodes */ \
	X(E_NODE_BUSY, "something on the node is in use", \
	  "Another dlrun works on the same thing there. It is done in a moment, or a run still uses it.") \
	X(E_NODE_CORRUPT, "what arrived on the node is not what was sent", \
	  "A layer did not have its digest when it had arrived. It was removed there; the same command " \
	  "sends it again. If that goes on, the disk or the connection damages data.") \
	X(E_NODE_DISK, "the disk of the node has no room for the run", \
	  "`dlrun gc --node HOST` removes old trees and layers there; `dir:` of the target names another " \
	  "directory. Nothing was started.") \
	X(E_NODE_FAILED, "the node could not do it", \
	  "The message has the node's own message.") \
	X(E_NODE_LOST, "the node stopped answering", \
	  "The connection was cut or nothing came for too long. What runs there goes on; the same command asks " \
	  "again.") \
	X(E_NODE_PROTOCOL, "the node gave an answer that makes no sense", \
	  "Something between dlrun and its script on the node changes what they say: a login shell, a " \
	  "ForceCommand, a wrapper around ssh. `dlrun doctor` with the target's name looks closer.") \
	X(E_NODE_ROOT, "dlrun cannot use its directory on the node", \
	  "It keeps layers and runs in `dir:` of the target (~/.dlrun): a directory of your own, on a disk " \
	  "that you may write to. A full or read-only home is mended by another `dir:`.") \
	X(E_NODE_SHELL, "the login shell of the node does not run commands", \
	  "dlrun needs a POSIX sh behind `ssh HOST COMMAND`. The lines that are shown came instead: a " \
	  "login that is locked, a ForceCommand, or a profile that ends the shell.") \
	X(E_NODE_TOOL, "a tool is missing on the node", \
	  "dlrun installs nothing on a node, and needs what every Linux has: tar, gzip, sha256sum, and for locks " \
	  "one of flock (of util-linux or busybox), perl and python3. The message names what is not on PATH there.") \
	/* ssh */ \
	X(E_SSH_CONFIG, "the configuration of ssh cannot be used", \
	  "`ssh -G HOST` shows what ssh makes of a name; dlrun goes by it. The message quotes it.") \
	X(E_SSH_HOST_KEY, "the host is not the one that is known", \
	  "Its key is another one than known_hosts has, or is revoked there: somebody may stand between, or " \
	  "the machine was reinstalled. dlrun never goes on. Ask who runs it, then `ssh-keygen -R HOST`.") \
	X(E_SSH_LOGIN, "the host does not accept the login", \
	  "`ssh HOST true` must work without dlrun. The message says which keys were offered; an agent that " \
	  "is not running, a wrong user name and a missing public key there are the usual reasons.") \
	X(E_SSH_LOST, "the connection to the host was lost", \
	  "What runs there goes on. The next command connects again.") \
	X(E_SSH_PORT, "nothing answers at the port on the host", \
	  "The host was reached, the program's port was not: it does not listen (yet), or it listens on " \
	  "another address than 127.0.0.1. `dlrun logs RUN` shows what the program says.") \
	X(E_SSH_REFUSED, "the ssh server does not allow it", \
	  "The server refused a channel: AllowTcpForwarding no and PermitOpen keep ports closed, " \
	  "MaxSessions limits commands. Whoever runs the host can change that in its sshd_config.") \
	X(E_SSH_UNKNOWN_HOST, "the host is not known yet", \
	  "Its key is in no known_hosts file. `ssh HOST true` shows the fingerprint and asks; " \
	  "--accept-new-host takes it unseen.") \
	X(E_SSH_UNREACHABLE, "the host cannot be reached", \
	  "The name is not known, nothing listens there, or no answer came. `ssh -v HOST true` shows how " \
	  "far it gets; a jump host or a VPN may be down.") \
	/* jobs of clusters */ \
	X(E_JOB_CONFIG, "something that the pod refers to is missing", \
	  "A Secret, a ConfigMap or a key of one does not exist in the namespace, or the image's user does not go " \
	  "with the security settings. The message names it. The pod starts by itself once it is there.") \
	X(E_JOB_DENIED, "the cluster does not let the pod be made", \
	  "The Job was accepted, its pods are not: Pod Security, an admission webhook, a limit range or a missing " \
	  "service account. The cluster's own message is shown. `security: restricted` of the target suits the " \
	  "strictest level of Pod Security.") \
	X(E_JOB_EVICTED, "the run was evicted from its node", \
	  "The node ran out of memory or disk, the pod used more disk than it may, or somebody emptied the node. " \
	  "`memory:` and `disk:` below `resources:` say what a run needs; the node then keeps that much for it.") \
	X(E_JOB_FAILED, "the cluster ended the job", \
	  "The Job failed for a reason of the cluster's that says nothing of the program. It is shown as it is.") \
	X(E_JOB_NODE, "the node of the run was lost", \
	  "The node stopped answering, was shut down or removed, or lost track of the container, so nobody saw the " \
	  "program end. Results on volumes are kept up to then; `dlrun restart RUN` starts the same code again.") \
	X(E_JOB_OOM, "the program used more memory than it may", \
	  "The kernel killed it at its memory limit, or because the node had no memory left. `--memory` or " \
	  "`resources: {memory: …}` asks for more. This is the memory of the host, not that of a GPU.") \
	X(E_JOB_PREEMPTED, "the run had to make room", \
	  "Something with a higher priority took its place. That does not count as a failure of the program; " \
	  "--priority asks for a higher one.") \
	X(E_JOB_REJECTED, "the node sent the pod back", \
	  "The scheduler chose a node, and the node itself had no room or no working device for the pod. A broken " \
	  "GPU looks like this.") \
	X(E_JOB_START, "the container cannot be started", \
	  "The node has the image, but its container runtime or network fails. Its own message is shown.") \
	X(E_JOB_VOLUME, "a volume cannot be mounted", \
	  "The claim, Secret or server that a volume names does not exist, does not answer, or is in use by another " \
	  "node. The message names it. The node tries again by itself.") \
	/* waiting for a place */ \
	X(E_SCHED, "no node takes the run now", \
	  "The scheduler's own reasons are shown. It goes on trying by itself.") \
	X(E_SCHED_ARCH, "no node has that CPU architecture", \
	  "The run is kept to nodes of the platform of its image. `platform:` of the target says which one to build.") \
	X(E_SCHED_CPU, "no node has so many free CPUs", \
	  "It starts by itself when enough are free. --cpus asks for fewer.") \
	X(E_SCHED_DISK, "no node has so much free disk", \
	  "It starts by itself when enough is free. `resources: {disk: …}` asks for less.") \
	X(E_SCHED_GPU, "no node has so many free GPUs", \
	  "All GPUs of one program must be in one node. It starts by itself when enough are free in one; fewer " \
	  "(--gpus) may fit now, and --nodes spreads a program over several.") \
	X(E_SCHED_IMPOSSIBLE, "no node can ever run this", \
	  "Even an empty cluster could not: more is asked for in one pod than any node or quota has, or no node has " \
	  "that kind of GPU. Ask for less.") \
	X(E_SCHED_MEMORY, "no node has so much free memory", \
	  "It starts by itself when enough is free. --memory asks for less.") \
	X(E_SCHED_QUEUE, "the queue has not admitted the run yet", \
	  "Kueue starts it when its queue has room. The message says what it waits for.") \
	X(E_SCHED_QUOTA, "the quota of the namespace is used up", \
	  "The namespace may use only so much at a time. The pod is made by itself when others end; " \
	  "`kubectl describe quota` shows what is used.") \
	X(E_SCHED_SELECTOR, "no node has the labels that the run wants", \
	  "`gpu_types:` or the overlay name labels (node_selector, affinity). `kubectl get nodes --show-labels` shows " \
	  "which there are.") \
	X(E_SCHED_SUSPENDED, "the job is suspended", \
	  "Somebody or something set spec.suspend of the Job. It starts when that is taken back.") \
	X(E_SCHED_TAINT, "the nodes that have room are kept for others", \
	  "Tainted nodes take only pods that tolerate the taint. `tolerations:` of a GPU type or the overlay adds " \
	  "that; ask whoever runs the cluster whether you may.") \
	X(E_SCHED_VOLUME, "a volume claim is not ready", \
	  "A PersistentVolumeClaim of the run does not exist, is not bound to a volume, or its volume is in another " \
	  "place than the nodes. `kubectl describe pvc` says why.") \
	/* commands beside a run */ \
	X(E_EXEC_NOT_EXECUTABLE, "the command cannot be executed", \
	  "It is there, where the run is, but it may not be executed, is a directory, or is no program for that machine.") \
	X(E_EXEC_NOT_FOUND, "the command is not there", \
	  "The first word of the command is neither on the PATH of the run's environment nor a file where the run is. " \
	  "A line for a shell needs one: `dlrun exec RUN -- sh -c 'LINE'`.") \
	/* runs */ \
	X(E_RUN_AFTER, "a run that it was to follow ended otherwise", \
	  "`--after RUN` begins a run after the success of another one; it begins after any end with `--after RUN:any`. " \
	  "Where the other one has not succeeded the run is cancelled, and has not begun. `dlrun why RUN` says which it " \
	  "was.") \
	X(E_RUN_COMMAND, "there is nothing to run", \
	  "Give the program behind `--` or set `command:` in dlrun.yaml.") \
	X(E_RUN_DATA, "data of the run is not there", \
	  "`data:` names paths of the working tree whose content stays where it is. Locally that is the tree itself, or " \
	  "the place that the target's own `data:` gives.") \
	X(E_RUN_ENDED, "the run has ended already", \
	  "`dlrun show RUN` says how. `dlrun submit --from RUN` runs the same code again.") \
	X(E_RUN_EXEC, "the program to run is not there", \
	  "The first word of the command is neither on PATH nor a file of the working tree. The run is recorded " \
	  "with exit status 127, as a shell would say.") \
	X(E_RUN_FAILED, "the program failed", \
	  "The exit status is the program's own (128 + n for a signal). `dlrun logs RUN` shows its output.") \
	X(E_RUN_LOG, "the output of the run is gone", \
	  "The file that the program wrote to was removed. What dlrun knows of the run: `dlrun show RUN`.") \
	X(E_RUN_LOST, "the run was lost", \
	  "The machine restarted, or what watched over the run was killed, so that nobody saw the " \
	  "program end. Output and results up to then are kept.") \
	X(E_RUN_NAME, "a name of a run is not valid", \
	  "A name starts with a letter and has up to 40 of a-z, 0-9 and -.") \
	X(E_RUN_NOT_FOUND, "there is no such run", \
	  "A run is named by its id, a unique beginning of it, @ (the newest) or @-1 (the one before). A study " \
	  "is named by its group.") \
	X(E_RUN_OTHER, "the run is somebody else's", \
	  "A run that was found by TARGET:ID can be shown, followed, fetched and forwarded by everybody who " \
	  "may read the place. Only who submitted it cancels, restarts or removes it.") \
	X(E_RUN_OUTPUTS, "an output of the run cannot be a directory", \
	  "`outputs:` names directories of the working tree that lie in $DLRUN_OUTPUT_DIR. A file of the snapshot " \
	  "cannot be one.") \
	X(E_RUN_RUNNING, "the run has not ended", \
	  "`dlrun cancel RUN` stops it, `dlrun wait RUN` waits for its end.") \
	X(E_RUN_SETUP, "the setup of the run cannot be done", \
	  "`setup.key:` names files of the snapshot; `setup.run:` is run once for each content of them. " \
	  "`dlrun logs RUN` shows its output when it failed.") \
	X(E_RUN_START, "the run could not be started", \
	  "What watches over the program could not be started or could not make the run's directory.") \
	X(E_RUN_STUDY, "the word names a study, not one run", \
	  "A study is all runs of a group. This command takes one of them: name it by its id or its name. " \
	  "`dlrun ps --group STUDY` lists them.") \
	X(E_RUN_TIMEOUT, "the run reached its time limit", \
	  "`--timeout` or `timeout:` ended the program. The exit status is 124.") \
	X(E_STORE, "the record of runs cannot be used", \
	  "The message names the database. It is a SQLite file below XDG_STATE_HOME.") \
	X(E_STORE_CHANGED, "a run's record was changed by another dlrun", \
	  "Two commands worked on the same run at the same time. Nothing is lost: repeat the command.") \
	X(E_STORE_VERSION, "the record of runs was written by a newer dlrun", \
	  "Use that newer dlrun, or another XDG_STATE_HOME.") \
	/* targets */ \
	X(E_TARGET, "there is no such target", \
	  "`local` is built in; others are defined below `targets:` in dlrun.yaml.") \
	X(E_TARGET_OTHER, "the target leads to another place now", \
	  "A run is asked for where it was sent to. The context or host of that name stands for another " \
	  "one since; its runs are not touched.") \
	X(E_TARGET_SILENT, "a target did not answer in time", \
	  "Its runs go on; their state is shown as unknown with the last known one. Ask again with " \
	  "`dlrun ps`.") \
	X(E_TARGET_UNSUPPORTED, "the target cannot do this", \
	  "Not every kind of target offers every operation; the message says which one was asked for.") \
	/* autoscaling */ \
	X(E_SCALE_LEASE, "the autoscaler may not act now", \
	  "One autoscaler acts on a cluster at a time, on what it saw a moment ago. `dlrun autoscale run` tries again " \
	  "by itself; with `--once` it gives up after a while, and says who holds the Lease.") \
	X(E_SCALE_PROVIDER, "a provider of machines failed", \
	  "The message is the provider's. `dlrun autoscale plan` shows which groups wait, and how long.") \
	X(E_SCALE_SETTINGS, "the settings of the autoscaler are not valid", \
	  "The message names the line and the key. dlrun-autoscale(5) lists the keys.") \
	X(E_SCALE_SNAPSHOT, "a snapshot of the autoscaler is not valid", \
	  "The message names the member. `dlrun autoscale plan --save FILE` writes a valid one.") \
	/* the rest */ \
	X(E_CANCELED, "stopped on request", "Ctrl-C or a signal ended the command.") \
	X(E_BUG, "dlrun itself is wrong", "Please report it with the message.")
/* clang-format on */

#endif
