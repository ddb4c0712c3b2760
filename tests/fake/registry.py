# SPDX-License-Identifier: Apache-2.0
"""A registry (OCI distribution specification 1.1) in memory that is strict, scriptable and counts.

https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md
"""

import gzip
import hashlib
import io
import json
import re
import secrets
import tarfile
import time

from scripted import Answer, ScriptedServer
from tokens import basic_user

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
MANIFESTS, INDEXES = (OCI_MANIFEST, DOCKER_MANIFEST), (OCI_INDEX, DOCKER_INDEX)
NAME = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*"
DIGEST = r"sha256:[0-9a-f]{64}"
TAG = r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}"
FOREIGN = ".foreign."


def digest_of(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def compact(value):
    return json.dumps(value, separators=(",", ":")).encode()


def failure(status, code, message="", detail=None, headers=()):
    """An error in the registry's form."""
    body = json.dumps({"errors": [{"code": code, "message": message or code.lower(), "detail": detail}]})
    return Answer(status, [("Content-Type", "application/json"), *headers], body)


class Basic:
    """auth=Basic({name: password}): every request needs one of these users.

    allow: function (user, repository, action) -> bool; False gives 403 DENIED.
    """

    def __init__(self, users, realm="registry", allow=None):
        self.users, self.realm, self.allow = users, realm, allow

    def check(self, request, needs):
        user = basic_user(request.authorization, self.users)
        if not user:
            return failure(401, "UNAUTHORIZED", "authentication required",
                           headers=[("WWW-Authenticate", f'Basic realm="{self.realm}"')])
        for name, actions in needs:
            if self.allow and not all(self.allow(user, name, action) for action in actions):
                return failure(403, "DENIED", "requested access to the resource is denied")
        return None


class Bearer:
    """auth=Bearer(token_server): every request needs a token that is good for what it does.

    tokens   a tokens.TokenServer. service, realm: what the challenge says (realm: default its URL).
    denied   the status for a token that is good, but not for this: 401 (with insufficient_scope
             and a challenge) or 403.
    scopes   False: the challenge names no scope.
    """

    def __init__(self, tokens, service="registry.test", realm=None, denied=401, scopes=True):
        self.tokens, self.service, self.realm = tokens, service, realm or tokens.realm
        self.denied, self.scopes = denied, scopes

    def check(self, request, needs):
        token = self.tokens.lookup(request.authorization)
        if token and all(actions <= token.scopes.get(name, set()) for name, actions in needs):
            return None
        if token and self.denied != 401:
            return failure(self.denied, "DENIED", "requested access to the resource is denied")
        challenge = f'Bearer realm="{self.realm}",service="{self.service}"'
        if needs and self.scopes:
            order = ("pull", "push", "delete")
            scope = " ".join(f"repository:{n}:{','.join(sorted(a, key=order.index))}" for n, a in needs)
            challenge += f',scope="{scope}"'
        if request.authorization:
            challenge += f',error="{"insufficient_scope" if token else "invalid_token"}"'
        return failure(401, "UNAUTHORIZED", "authentication required", headers=[("WWW-Authenticate", challenge)])


class Upload:
    """An upload session: the bytes so far, the state that the next request must bring."""

    def __init__(self):
        self.id, self.state = secrets.token_hex(16), secrets.token_urlsafe(24)
        self.data = bytearray()
        self.closed = False  # a chunk below the minimum length was the last one
        self.opened = time.monotonic()


class Repository:
    """blobs: {digest: bytes}; manifests: {digest: (media type, bytes)}; tags: {tag: digest}; uploads."""

    def __init__(self):
        self.blobs, self.manifests, self.tags, self.uploads = {}, {}, {}, {}


class Registry(ScriptedServer):
    """A registry in threads of this process; a ScriptedServer, so rules override every answer.

    Keyword arguments, each also an attribute that may be changed at run time:
    auth            None, Basic or Bearer.
    single_post     True: POST ?digest= with the blob answers 201; False: 202, body thrown away.
    mount           201: mounts where the source has the blob, else 202; or the status that every
                    mount gets: 202 (a session), 400, 401, 403, 404, 405.
    head_blob, head_manifest   None, or the status that every such HEAD gets (403, 405, …).
    location        "absolute", "relative" (a path), "bare" (relative to the request's path) or
                    "other" (absolute, on `other`, which takes uploads without authorization), or any
                    text that the path is put behind ("http://169.254.169.254").
    state           uploads' Locations carry ?_state=…, new in each answer, wanted back verbatim.
    chunked         False: every PATCH gets 416. chunk_max: a longer PATCH gets 416. chunk_min: said
                    as OCI-Chunk-Min-Length; no chunk may follow one that is shorter.
    check_order     False: a PATCH with the wrong Content-Range is taken (202), as distribution
                    2.8.2 does.
    resume          what arrived of a PATCH that was cut is kept; False: the session is lost.
    immutable_tags  None, or the status (400, 409) for a tag that would move.
    digest_header   {"put-manifest"|"get-manifest"|"head-manifest"|"put-blob": "wrong"|"missing"}:
                    the Docker-Content-Digest of these answers.
    check_blobs     False: a manifest is taken although blobs are missing.
    redirect_blobs  GET of a blob answers 307 to `other`.
    More arguments: ScriptedServer (listen, name, tls, continues).

    repositories: {name: Repository}; repo(name) makes one. other: a ScriptedServer for the same
    data that wants no authorization, on another port; its requests are counted apart.
    """

    SWITCHES = {"auth": None, "single_post": False, "mount": 201, "head_blob": None, "head_manifest": None,
                "location": "absolute", "state": True, "chunked": True, "chunk_max": None, "chunk_min": None,
                "check_order": True, "resume": True, "immutable_tags": None, "digest_header": None,
                "check_blobs": True, "redirect_blobs": False}

    def __init__(self, **arguments):
        for name, value in self.SWITCHES.items():
            setattr(self, name, arguments.pop(name, value))
        self.digest_header = dict(self.digest_header or {})
        self.repositories = {}
        self.ghosts = set()
        self.other = None
        super().__init__(**arguments)
        self.other = Storage(self, tls=self.tls, name=arguments.get("name"))

    def close(self):
        super().close()
        self.other.close()

    # --- for tests

    def repo(self, name):
        with self.lock:
            return self.repositories.setdefault(name, Repository())

    def add_blob(self, name, data):
        """Put a blob there; returns its digest."""
        with self.lock:
            self.repo(name).blobs[digest_of(data)] = data
        return digest_of(data)

    def add_manifest(self, name, tag, manifest, media_type=None):
        """Put a manifest (dict or bytes) there unchecked, tag may be None; returns its digest."""
        data = manifest if isinstance(manifest, bytes) else compact(manifest)
        media_type = media_type or json.loads(data).get("mediaType", OCI_MANIFEST)
        with self.lock:
            repo = self.repo(name)
            repo.manifests[digest_of(data)] = (media_type, data)
            if tag:
                repo.tags[tag] = digest_of(data)
        return digest_of(data)

    def add_image(self, name, tag="latest", layers=3, config=None, files=None, platform=("linux", "amd64"),
                  layer_bytes=0):
        """An image of so many gzip layers; returns the digest of its manifest.

        config: what is added to the image configuration. files: {path: bytes}, in the last layer.
        layer_bytes: size of an incompressible file in every layer.
        """
        blobs = [layer({f"base/{i}": b"%d\n" % i, **({f"base/fill{i}": noise(i, layer_bytes)} if layer_bytes else {}),
                        **(files or {} if i == layers - 1 else {})}) for i in range(layers)]
        image = {"architecture": platform[1], "os": platform[0], "config": {"Env": ["PATH=/usr/bin:/bin"]},
                 "rootfs": {"type": "layers", "diff_ids": [digest_of(gzip.decompress(b)) for b in blobs]},
                 "history": [{"created_by": f"layer {i}"} for i in range(layers)], **(config or {})}
        return self.add_manifest(name, tag, {
            "schemaVersion": 2, "mediaType": OCI_MANIFEST,
            "config": self._descriptor(name, OCI_CONFIG, compact(image)),
            "layers": [self._descriptor(name, OCI_LAYER, blob) for blob in blobs]})

    def add_index(self, name, tag, images):
        """An index; images: {(os, architecture[, variant]): manifest digest}. Returns its digest."""
        entries = []
        for platform, digest in images.items():
            media_type, data = self.repo(name).manifests[digest]
            words = dict(zip(("os", "architecture", "variant"), platform))
            entries.append({"mediaType": media_type, "digest": digest, "size": len(data), "platform": words})
        return self.add_manifest(name, tag, {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries})

    def _descriptor(self, name, media_type, data):
        return {"mediaType": media_type, "digest": self.add_blob(name, data), "size": len(data)}

    def lose_sessions(self):
        """Every open upload is forgotten."""
        with self.lock:
            for repo in self.repositories.values():
                repo.uploads.clear()

    def sessions(self):
        """How many uploads are open."""
        with self.lock:
            return sum(len(repo.uploads) for repo in self.repositories.values())

    def restart(self):
        """All connections end, all upload sessions are lost."""
        self.lose_sessions()
        self.drop_connections()

    def drop_blob(self, name, digest):
        with self.lock:
            del self.repo(name).blobs[digest]

    def collect_garbage(self):
        """Remove the blobs that no manifest of their repository refers to; returns their digests."""
        removed = []
        with self.lock:
            for repo in self.repositories.values():
                used = {d["digest"] for _, data in repo.manifests.values() for d in references(json.loads(data))}
                removed += [digest for digest in repo.blobs if digest not in used]
                repo.blobs = {digest: data for digest, data in repo.blobs.items() if digest in used}
        return removed

    def make_ghost(self, name, digest):
        """The registry thinks it has the blob, but its bytes are gone: HEAD, mount and manifests
        succeed, GET answers 200 and no bytes. An upload heals it."""
        with self.lock:
            self.ghosts.add((name, digest))

    def check_image(self, name, reference):
        """Assert that the image is whole: digests, sizes, diff_ids; returns (manifest, config)."""
        with self.lock:
            repo = self.repo(name)
            digest = repo.tags.get(reference, reference)
            assert digest in repo.manifests, f"no manifest {reference} in {name}"
            data = repo.manifests[digest][1]
            assert digest_of(data) == digest
            manifest = json.loads(data)
            for entry in references(manifest):
                assert (name, entry["digest"]) not in self.ghosts, f"{entry['digest']} is a ghost"
                blob = repo.blobs.get(entry["digest"])
                assert blob is not None, f"{name} lacks {entry['digest']}"
                assert len(blob) == entry["size"] and digest_of(blob) == entry["digest"], entry
            config = json.loads(repo.blobs[manifest["config"]["digest"]])
            tars = [unpacked(repo.blobs[entry["digest"]]) for entry in manifest["layers"]]
            for tar, diff_id in zip(tars, config["rootfs"]["diff_ids"], strict=True):
                assert tar is None or digest_of(tar) == diff_id, f"{diff_id} is not its layer"
        return manifest, config

    # --- dispatch

    ROUTES = [(re.compile(pattern + r"\Z"), method) for pattern, method in (
        (r"/v2/?", "root"),
        (r"/v2/_catalog", "catalog"),
        (rf"/v2/(?P<name>{NAME})/tags/list", "tag_list"),
        (rf"/v2/(?P<name>{NAME})/blobs/uploads/?", "uploads"),
        (rf"/v2/(?P<name>{NAME})/blobs/uploads/(?P<id>[0-9a-f]{{32}})", "upload"),
        (rf"/v2/(?P<name>{NAME})/blobs/(?P<digest>{DIGEST})", "blob"),
        (rf"/v2/(?P<name>{NAME})/manifests/(?P<reference>{DIGEST}|{TAG})", "manifest"))]

    def handle(self, request):
        return self.dispatch(request, self.auth)

    def error(self, status):
        return failure(status, {401: "UNAUTHORIZED", 403: "DENIED", 404: "NAME_UNKNOWN", 405: "UNSUPPORTED",
                                413: "SIZE_INVALID", 429: "TOOMANYREQUESTS"}.get(status, "UNKNOWN"))

    def dispatch(self, request, auth):
        """The answer to a request that must pass this auth (None: all do)."""
        for pattern, kind in self.ROUTES:
            match = pattern.match(request.path)
            if match:
                words = match.groupdict()
                refused = auth and auth.check(request, needs_of(request, words.get("name")))
                answer = refused or self._call(kind, request, words)
                answer.headers = [("Docker-Distribution-API-Version", "registry/2.0"), *answer.headers]
                return answer
        return failure(404, "NAME_INVALID" if request.path.startswith("/v2/") else "UNSUPPORTED")

    def _call(self, kind, request, words):
        function = getattr(self, f"_{request.method.lower()}_{kind}", None)
        if request.method == "HEAD":
            function = getattr(self, f"_get_{kind}", None)
        if not function:
            return failure(405, "UNSUPPORTED")
        with self.lock:
            return function(request, **words)

    def cut_short(self, request):
        match = re.fullmatch(rf"/v2/({NAME})/blobs/uploads/([0-9a-f]{{32}})", request.path)
        if not match or request.method not in ("PATCH", "PUT"):
            return
        with self.lock:
            uploads = self.repo(match[1]).uploads
            if request.method == "PUT" or not self.resume:
                uploads.pop(match[2], None)
            elif match[2] in uploads:
                uploads[match[2]].data += request.body

    def _get_root(self, request):
        return Answer(200, [("Content-Type", "application/json")], b"{}")

    def _get_catalog(self, request):
        return Answer(200, [("Content-Type", "application/json")], compact({"repositories": sorted(self.repositories)}))

    def _get_tag_list(self, request, name):
        if name not in self.repositories:
            return failure(404, "NAME_UNKNOWN", "repository name not known to registry", {"name": name})
        tags = sorted(t for t in self.repo(name).tags if t > request.arg("last", ""))
        headers = [("Content-Type", "application/json")]
        count = request.arg("n", "")
        if count.isdigit() and int(count) < len(tags):
            tags = tags[:int(count)]
            if tags:
                headers.append(("Link", f'</v2/{name}/tags/list?n={count}&last={tags[-1]}>; rel="next"'))
        return Answer(200, headers, compact({"name": name, "tags": tags}))

    # --- blobs

    def _get_blob(self, request, name, digest):
        if request.method == "HEAD" and self.head_blob:
            return self.error(self.head_blob)
        data = self.repo(name).blobs.get(digest)
        if data is None:
            return failure(404, "BLOB_UNKNOWN", "blob unknown to registry", {"digest": digest})
        headers = [("Content-Type", "application/octet-stream"), ("Docker-Content-Digest", digest),
                   ("Accept-Ranges", "bytes")]
        if request.method == "HEAD":
            return Answer(200, headers, data)
        if (name, digest) in self.ghosts:
            return Answer(200, headers, b"", how="short", length=len(data))
        if self.redirect_blobs and request.headers.get("Host") != self.other.address:
            return Answer(307, [("Location", self.other.url + request.target)])
        return ranged(data, request.headers.get("Range"), headers)

    def _delete_blob(self, request, name, digest):
        if self.repo(name).blobs.pop(digest, None) is None:
            return failure(404, "BLOB_UNKNOWN")
        return Answer(202)

    def _keep_blob(self, name, digest, data):
        self.repo(name).blobs[digest] = data
        self.ghosts.discard((name, digest))
        return Answer(201, [("Location", f"/v2/{name}/blobs/{digest}"), *self._digest_header("put-blob", digest)])

    def _digest_header(self, operation, digest):
        how = self.digest_header.get(operation)
        if how == "missing":
            return []
        return [("Docker-Content-Digest", digest_of(b"wrong") if how == "wrong" else digest)]

    # --- uploads

    def _post_uploads(self, request, name):
        digest, source = request.arg("mount"), request.arg("from")
        if digest is not None:
            answer = self._mount(name, digest, source)
            if answer:
                return answer
        digest = request.arg("digest")
        octets = request.headers.get("Content-Type") == "application/octet-stream"
        if digest is not None and self.single_post and octets:
            if not re.fullmatch(DIGEST, digest) or digest_of(request.body) != digest:
                return failure(400, "DIGEST_INVALID", "provided digest did not match uploaded content")
            return self._keep_blob(name, digest, request.body)
        upload = Upload()
        self.repo(name).uploads[upload.id] = upload
        headers = [("OCI-Chunk-Min-Length", str(self.chunk_min))] if self.chunk_min else []
        return self._session(request, name, upload, 202, headers)

    def _mount(self, name, digest, source):
        if self.mount not in (201, 202):
            return self.error(self.mount)
        found = self.repositories.get(source, Repository()).blobs.get(digest)
        if self.mount == 202 or found is None:
            return None
        answer = self._keep_blob(name, digest, found)
        if (source, digest) in self.ghosts:
            self.ghosts.add((name, digest))
        return answer

    def _session(self, request, name, upload, status, headers=()):
        """An answer that tells where the session goes on."""
        upload.state = secrets.token_urlsafe(24)
        path = f"/v2/{name}/blobs/uploads/{upload.id}"
        where = {"absolute": self.base_of(request) + path, "relative": path, "other": self.other.url + path,
                 "bare": ("" if request.path.endswith("/") or request.method != "POST" else "uploads/") + upload.id}
        location = where.get(self.location, self.location + path)
        if self.state:
            location += f"?_state={upload.state}%3D%3D"
        last = max(0, len(upload.data) - 1)
        return Answer(status, [("Location", location), ("Range", f"0-{last}"), ("Docker-Upload-UUID", upload.id),
                               *headers])

    def base_of(self, request):
        """The scheme and host under which this request came."""
        return f"{'https' if self.tls else 'http'}://{request.headers.get('Host')}"

    def _find_upload(self, request, name, id):
        """(upload, None) or (None, why not)."""
        upload = self.repo(name).uploads.get(id)
        if not upload:
            return None, failure(404, "BLOB_UPLOAD_UNKNOWN", "blob upload unknown to registry")
        if self.state and request.arg("_state") != upload.state + "==":
            return None, failure(400, "BLOB_UPLOAD_INVALID", "blob upload invalid: _state is not the last one")
        return upload, None

    def _get_upload(self, request, name, id):
        upload, refused = self._find_upload(request, name, id)
        return refused or self._session(request, name, upload, 204)

    def _patch_upload(self, request, name, id):
        upload, refused = self._find_upload(request, name, id)
        if refused:
            return refused
        too_long = self.chunk_max is not None and request.length > self.chunk_max
        wrong = self.check_order and not in_order(request, len(upload.data))
        if not self.chunked or too_long or wrong or upload.closed:
            answer = self._session(request, name, upload, 416)
            answer.body = failure(416, "BLOB_UPLOAD_INVALID", "this chunk is not taken").body
            return answer
        upload.data += request.body
        upload.closed = bool(self.chunk_min) and request.length < self.chunk_min
        return self._session(request, name, upload, 202)

    def _put_upload(self, request, name, id):
        upload, refused = self._find_upload(request, name, id)
        if refused:
            return refused
        digest = request.arg("digest")
        if not digest or not re.fullmatch(DIGEST, digest):
            return failure(400, "DIGEST_INVALID", "no digest of the blob")
        if request.length and "Content-Range" in request.headers and not in_order(request, len(upload.data)):
            return failure(416, "BLOB_UPLOAD_INVALID", "not the next chunk")
        del self.repo(name).uploads[id]
        data = bytes(upload.data) + request.body if upload.data else request.body
        if digest_of(data) != digest:
            return failure(400, "DIGEST_INVALID", "provided digest did not match uploaded content")
        return self._keep_blob(name, digest, data)

    def _delete_upload(self, request, name, id):
        upload, refused = self._find_upload(request, name, id)
        if refused:
            return refused
        del self.repo(name).uploads[upload.id]
        return Answer(204)

    # --- manifests

    def _get_manifest(self, request, name, reference):
        operation = f"{request.method.lower()}-manifest"
        if request.method == "HEAD" and self.head_manifest:
            return self.error(self.head_manifest)
        repo = self.repositories.get(name)
        if not repo:
            return failure(404, "NAME_UNKNOWN", "repository name not known to registry", {"name": name})
        digest = repo.tags.get(reference, reference)
        if digest not in repo.manifests:
            return failure(404, "MANIFEST_UNKNOWN", "manifest unknown", {"unknown": reference})
        media_type, data = repo.manifests[digest]
        return Answer(200, [("Content-Type", media_type), *self._digest_header(operation, digest)], data)

    def _put_manifest(self, request, name, reference):
        digest = digest_of(request.body)
        by_digest = reference.startswith("sha256:")
        if by_digest and reference != digest:
            return failure(400, "DIGEST_INVALID", "the manifest has another digest")
        wrong = self._manifest_fault(request)
        if wrong:
            return failure(400, "MANIFEST_INVALID", wrong)
        repo = self.repo(name)
        missing = self._missing(repo, json.loads(request.body)) if self.check_blobs else []
        if missing:
            errors = [{"code": "MANIFEST_BLOB_UNKNOWN", "message": "blob unknown to registry", "detail": {"digest": d}}
                      for d in missing]
            return Answer(404, [("Content-Type", "application/json")], compact({"errors": errors}))
        if not by_digest and self.immutable_tags and repo.tags.get(reference, digest) != digest:
            return failure(self.immutable_tags, "TAG_INVALID", f"the tag '{reference}' is immutable")
        repo.manifests[digest] = (request.headers.get("Content-Type"), request.body)
        if not by_digest:
            repo.tags[reference] = digest
        return Answer(201, [("Location", f"/v2/{name}/manifests/{digest}"),
                            *self._digest_header("put-manifest", digest)])

    def _manifest_fault(self, request):
        """What is wrong with the form of this manifest, or None."""
        media_type = request.headers.get("Content-Type")
        try:
            manifest = json.loads(request.body)
            entries = references(manifest)
            sizes = [e["size"] for e in entries if re.fullmatch(DIGEST, e["digest"]) and e["mediaType"]]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return f"not a manifest: {error!r}"
        if media_type not in MANIFESTS + INDEXES:
            return f"Content-Type {media_type}"
        if manifest.get("schemaVersion") != 2 or manifest.get("mediaType", media_type) != media_type:
            return "schemaVersion or mediaType does not fit"
        if ("manifests" in manifest) != (media_type in INDEXES) or len(sizes) != len(entries):
            return "the fields do not fit the media type"
        return None

    @staticmethod
    def _missing(repo, manifest):
        """Digests of what the manifest refers to and the repository has not, or not in this size."""
        missing = []
        for entry in references(manifest):
            held = repo.manifests.get(entry["digest"], (None, None))[1] if "manifests" in manifest else \
                repo.blobs.get(entry["digest"])
            if FOREIGN not in entry["mediaType"] and (held is None or len(held) != entry["size"]):
                missing.append(entry["digest"])
        return missing

    def _delete_manifest(self, request, name, reference):
        repo = self.repo(name)
        if reference in repo.tags:
            del repo.tags[reference]
            return Answer(202)
        if repo.manifests.pop(reference, None) is None:
            return failure(404, "MANIFEST_UNKNOWN", "manifest unknown")
        repo.tags = {tag: digest for tag, digest in repo.tags.items() if digest != reference}
        return Answer(202)


class Storage(ScriptedServer):
    """The other host of a registry: the same data, and no authorization is wanted."""

    def __init__(self, registry, **server):
        self.registry = registry
        super().__init__(**server)

    def handle(self, request):
        return self.registry.dispatch(request, None)

    def cut_short(self, request):
        self.registry.cut_short(request)


def needs_of(request, name):
    """[(repository, {actions})] that a request needs, as distribution asks for them."""
    if not name:
        return []
    actions = {"GET": {"pull"}, "HEAD": {"pull"}, "DELETE": {"delete"}}.get(request.method, {"pull", "push"})
    source = request.arg("from") if request.method == "POST" else None
    return [(name, actions)] + ([(source, {"pull"})] if source and source != name else [])


def references(manifest):
    """The descriptors in a manifest or an index."""
    if "manifests" in manifest:
        return list(manifest["manifests"])
    return [manifest["config"], *manifest["layers"]]


def in_order(request, offset):
    """The chunk has no Content-Range, or begins at the offset and has the length that it says."""
    field = request.headers.get("Content-Range")
    if field is None:
        return True
    match = re.fullmatch(r"(?:bytes )?(\d+)-(\d+)(?:/(?:\d+|\*))?", field)
    return bool(match) and int(match[1]) == offset and int(match[2]) - int(match[1]) + 1 == request.length


def ranged(data, field, headers):
    match = re.fullmatch(r"bytes=(\d+)-(\d*)", field or "")
    if not match:
        return Answer(200, headers, data)
    first, last = int(match[1]), min(int(match[2] or len(data) - 1), len(data) - 1)
    if first > last:
        return Answer(416, [*headers, ("Content-Range", f"bytes */{len(data)}")])
    return Answer(206, [*headers, ("Content-Range", f"bytes {first}-{last}/{len(data)}")], data[first:last + 1])


def noise(seed, size):
    """Bytes that do not compress, the same for the same seed."""
    return hashlib.shake_128(b"%d" % seed).digest(size)


def layer(files):
    """A gzip layer, the same for the same files ({path: bytes})."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path, content in sorted(files.items()):
            member = tarfile.TarInfo(path)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return gzip.compress(out.getvalue(), 1, mtime=0)


def unpacked(blob):
    """The tar of a layer; None for a compression that is not read here."""
    if blob[:2] == b"\x1f\x8b":
        return gzip.decompress(blob)
    return None if blob[:4] == b"\x28\xb5\x2f\xfd" else blob


def main():
    """A registry by hand: registry.py [PORT]; prints every request."""
    import sys

    port = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    with Registry(listen=("127.0.0.1", port)) as registry:
        print(registry.address, flush=True)
        try:
            seen = 0
            while registry.wait("", seen + 1, seconds=1 << 20):
                print(registry.requests[seen].line, flush=True)
                seen += 1
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()
