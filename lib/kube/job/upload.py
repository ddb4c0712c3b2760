# SPDX-License-Identifier: Apache-2.0
# Results of a pod into S3: python3 -ESc THIS s3://BUCKET/PATH FIRST-RANK SECONDS, beside the program.
#
# A file goes when it has not changed for a moment, one that keeps changing now and then, and all that is new when
# the program has ended; then the last tries go on for SECONDS, or until all that fails is what no retry mends. The pod's only image is that of the run: standard
# library only, Python 3.6. The end of the program is the end of a pipe that its script holds open.
# TERM means that the program is told to end: its last files are yet to come.
import signal
for name in ("SIGTERM", "SIGINT", "SIGQUIT"):
    signal.signal(getattr(signal, name), signal.SIG_IGN)
import base64, concurrent.futures, datetime, email.utils, hashlib, hmac, http.client, json, os, stat, sys, threading, time
import urllib.error, urllib.parse, urllib.request, xml.etree.ElementTree as ElementTree

ADDRESS, FIRST, LAST_S = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
ATTEMPT, OUTPUT, OWN = "/dlrun/attempt", "/dlrun/outputs", ".dlrun-collected"
SCAN_S, STILL_S, CHANGING_S, START_S = 1, 2, 30, 300
PART, SINGLE, AT_ONCE, TRIES = 8 << 20, 8 << 20, 8, 6
# Refusals of all files, and of one: they stay.
FINAL_OF_ALL = ("NoSuchBucket", "InvalidBucketName", "SignatureDoesNotMatch", "AllAccessDisabled", "AccountProblem", "NotSignedUp")
FINAL = FINAL_OF_ALL + ("AccessDenied", "MethodNotAllowed", "EntityTooLarge", "KeyTooLongError")
METADATA = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254").rstrip("/")


class Failed(Exception):
    """The code of S3, or a text. is_busy: the others would fare alike; is_final: no retry mends it."""

    def __init__(self, text, code=None, is_busy=False, is_final=False):
        Exception.__init__(self, text)
        self.code, self.is_busy, self.is_final = code, is_busy or code in FINAL_OF_ALL, is_final or code in FINAL


# A response that is cut is none of OSError.
UNCLEAR = OSError, ValueError, TypeError, LookupError, http.client.HTTPException, ElementTree.ParseError


def text_of_error(e):
    return str(e) or type(e).__name__


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None


def ask(url, method="GET", headers=None, data=None, timeout=30, direct=False):
    # Python's own message would show the secret.
    if not all(value.isprintable() for value in (headers or {}).values()):
        raise Failed("keys or tokens that are not plain text", is_busy=True, is_final=True)
    request = urllib.request.Request(url, data, headers or {}, method=method)
    opener = urllib.request.build_opener(NoRedirect, *([urllib.request.ProxyHandler({})] if direct else []))
    with opener.open(request, timeout=timeout) as response:
        return response.headers, response.read()


def text_of(path):
    with open(path) as f:
        return f.read().strip()


# Keys: the environment, a web identity, the container's endpoint, the instance.

class Keys:
    lock, now, until = threading.Lock(), None, 0

    @classmethod
    def get(cls):
        with cls.lock:
            if not cls.now or time.time() > cls.until - 300:
                try:
                    cls.now, cls.until = cls.find()
                except Failed:
                    if not cls.now or time.time() > cls.until:
                        raise
            return cls.now

    @classmethod
    def forget(cls, keys):
        with cls.lock:
            if cls.now == keys:
                cls.now = None

    @classmethod
    def find(cls):
        env = os.environ
        if env.get("AWS_ACCESS_KEY_ID") and env.get("AWS_SECRET_ACCESS_KEY"):
            # Secrets that were made of files end with a newline.
            return tuple(env.get("AWS_" + x, "").strip() for x in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN")), float("inf")
        try:
            if env.get("AWS_WEB_IDENTITY_TOKEN_FILE") and env.get("AWS_ROLE_ARN"):
                return cls.of_web()
            if env.get("AWS_CONTAINER_CREDENTIALS_FULL_URI") or env.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"):
                return cls.of_container()
            return cls.of_instance()
        except UNCLEAR as e:
            raise Failed("no keys for S3: " + text_of_error(e), is_busy=True)

    @staticmethod
    def of_json(text):
        keys = json.loads(text.decode())
        return ((keys["AccessKeyId"], keys["SecretAccessKey"], keys.get("Token")), until_of(keys.get("Expiration")))

    @staticmethod
    def of_web():
        env = os.environ
        region = env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or "us-east-1"
        url = env.get("AWS_ENDPOINT_URL_STS") or env.get("AWS_ENDPOINT_URL") or "https://sts.%s.amazonaws.com" % region
        form = {"Action": "AssumeRoleWithWebIdentity", "Version": "2011-06-15", "RoleArn": env["AWS_ROLE_ARN"],
                "RoleSessionName": env.get("AWS_ROLE_SESSION_NAME") or "dlrun",
                "WebIdentityToken": text_of(env["AWS_WEB_IDENTITY_TOKEN_FILE"])}
        _, body = ask(url, "POST", {"Content-Type": "application/x-www-form-urlencoded"}, urllib.parse.urlencode(form).encode())
        found = {e.tag.split("}")[-1]: e.text for e in ElementTree.fromstring(body).iter()}
        return (found["AccessKeyId"], found["SecretAccessKey"], found.get("SessionToken")), until_of(found.get("Expiration"))

    @classmethod
    def of_container(cls):
        env = os.environ
        url = env.get("AWS_CONTAINER_CREDENTIALS_FULL_URI") or \
            "http://169.254.170.2" + env["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"]
        token = env.get("AWS_CONTAINER_AUTHORIZATION_TOKEN")
        if env.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"):
            token = text_of(env["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"])
        return cls.of_json(ask(url, headers={"Authorization": token} if token else {}, direct=True)[1])

    @classmethod
    def of_instance(cls):
        if os.environ.get("AWS_EC2_METADATA_DISABLED") == "true":
            raise Failed("no keys for S3: neither in the environment (env:, secrets:), nor of the service account, nor of the node",
                         is_busy=True, is_final=True)
        _, token = ask(METADATA + "/latest/api/token", "PUT", {"X-aws-ec2-metadata-token-ttl-seconds": "21600"}, b"", 3, True)
        token = {"X-aws-ec2-metadata-token": token.decode()}
        path = METADATA + "/latest/meta-data/iam/security-credentials/"
        role = ask(path, headers=token, timeout=3, direct=True)[1].decode().split("\n")[0].strip()
        return cls.of_json(ask(path + role, headers=token, timeout=3, direct=True)[1])


def until_of(text):
    if not text:
        return float("inf")
    return datetime.datetime.strptime(text[:19] + "+0000", "%Y-%m-%dT%H:%M:%S%z").timestamp()


# Requests, signed by AWS Signature Version 4, and repeated.

class Bucket:
    def __init__(self, address):
        self.name, _, self.prefix = address[len("s3://"):].partition("/")
        self.endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        self.region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        self.skew = 0

    def place(self):
        """The beginning of each URL, and the bucket's part of the path."""
        if self.endpoint:
            whole = urllib.parse.urlsplit(self.endpoint)
            return whole.scheme + "://" + whole.netloc, whole.path.rstrip("/") + "/" + self.name
        end = ".cn" if self.region.startswith("cn-") else ""
        if "." in self.name:
            return "https://s3.%s.amazonaws.com%s" % (self.region, end), "/" + self.name
        return "https://%s.s3.%s.amazonaws.com%s" % (self.name, self.region, end), ""

    def send(self, method, key, params, data, keys):
        base, path = self.place()
        path += "/" + urllib.parse.quote(key.encode("utf-8", "surrogateescape"), safe="/~")
        query = "&".join("%s=%s" % (k, urllib.parse.quote(v, safe="~")) for k, v in sorted(params.items()))
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time.time() + self.skew))
        headers = {"host": urllib.parse.urlsplit(base).netloc, "x-amz-content-sha256": hashlib.sha256(data or b"").hexdigest(),
                   "x-amz-date": now}
        if keys[2]:
            headers["x-amz-security-token"] = keys[2]
        names = ";".join(sorted(headers))
        asked = "\n".join([method, path, query] + ["%s:%s" % h for h in sorted(headers.items())] +
                          ["", names, headers["x-amz-content-sha256"]])
        scope = "%s/%s/s3/aws4_request" % (now[:8], self.region)
        text = "\n".join(["AWS4-HMAC-SHA256", now, scope, hashlib.sha256(asked.encode()).hexdigest()])
        sign = ("AWS4" + keys[1]).encode()
        for part in scope.split("/") + [text]:
            sign = hmac.new(sign, part.encode(), hashlib.sha256).digest()
        headers["Authorization"] = "AWS4-HMAC-SHA256 Credential=%s/%s,SignedHeaders=%s,Signature=%s" % (
            keys[0], scope, names, base64.b16encode(sign).decode().lower())
        headers["Content-Type"] = "application/octet-stream"
        return ask(base + path + ("?" + query if query else ""), method, headers, data)

    def refused(self, error, keys):
        """Whether the same may be sent again at once."""
        body = error.read(65536)
        region = error.headers.get("x-amz-bucket-region")
        try:
            found = {e.tag.split("}")[-1]: e.text for e in ElementTree.fromstring(body).iter()}
        except ElementTree.ParseError:
            found = {}
        code, region = found.get("Code") or "status %d" % error.code, region or found.get("Region")
        if code in ("ExpiredToken", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId"):
            Keys.forget(keys)
        elif code == "RequestTimeTooSkewed" and error.headers.get("Date"):
            self.skew = email.utils.parsedate_to_datetime(error.headers["Date"]).timestamp() - time.time()
        elif region and region != self.region and error.code in (301, 307, 400):
            self.region = region
        else:
            is_busy = error.code >= 500 or error.code == 429 or code in ("SlowDown", "RequestTimeout", "Throttling")
            raise Failed("%s: %s" % (code, (found.get("Message") or "")[:200]), code, is_busy)

    def call(self, method, key, params=None, data=None, tries=TRIES):
        last, wait_s, n_healed = None, 0, 0
        for n in range(tries):
            time.sleep(wait_s)
            wait_s = min(10, 0.4 * 2 ** n) * (0.5 + 0.5 * os.urandom(1)[0] / 255)
            keys = Keys.get()
            try:
                return self.send(method, key, params or {}, data, keys)
            except urllib.error.HTTPError as e:
                try:
                    self.refused(e, keys)
                    # Keys of the environment stay what they are.
                    last = Failed("refused again and again: status %d" % e.code, is_busy=True, is_final=Keys.until == float("inf"))
                    n_healed += 1
                    wait_s = 0
                    if n_healed > 3:
                        break
                except Failed as failed:
                    last = failed
                except UNCLEAR as unclear:
                    last = Failed(text_of_error(unclear), is_busy=True)
            except UNCLEAR as e:
                last = Failed(text_of_error(e), is_busy=True)
            if last.is_final or last.code and not last.is_busy:
                break
        raise last

    def put(self, key, f, size, come):
        """come: of a large file the upload and its parts that came before a try of the same bytes failed."""
        if size <= SINGLE:
            self.call("PUT", key, data=f.read(SINGLE + 1))
            return
        if not come:
            _, body = self.call("POST", key, {"uploads": ""}, b"")
            come += [e.text for e in ElementTree.fromstring(body).iter() if e.tag.endswith("UploadId")][:1]
        try:
            self.put_parts(key, f, max(PART, size // 9000 + 1), come)
        except BaseException as e:
            if not isinstance(e, Failed) or not e.is_busy or e.is_final:
                self.abort(key, come)
            raise
        del come[:]

    def abort(self, key, come, tries=TRIES):
        try:
            if come:
                self.call("DELETE", key, {"uploadId": come[0]}, tries=tries)
        except Failed:
            pass
        del come[:]

    def put_parts(self, key, f, part, come):
        f.seek(part * (len(come) - 1))
        while True:
            data = f.read(part)
            if not data and len(come) > 1:
                break
            headers, _ = self.call("PUT", key, {"partNumber": str(len(come)), "uploadId": come[0]}, data)
            come.append(headers["ETag"])
        text = "".join("<Part><PartNumber>%d</PartNumber><ETag>%s</ETag></Part>" % e for e in enumerate(come[1:], 1))
        text = "<CompleteMultipartUpload>%s</CompleteMultipartUpload>" % text
        _, body = self.call("POST", key, {"uploadId": come[0]}, text.encode())
        if b"<Error>" in body:
            raise Failed("an upload did not end well", is_busy=True)


# Files.

class File:
    def __init__(self):
        # (size, mtime, inode) of the last look, and of what is in S3; (): something may be.
        self.seen = self.sent = self.of = None
        self.seen_at = self.sent_at = self.cost = 0
        self.come = []  # of an upload of what it was at `of`


class Uploader:
    def __init__(self, bucket, prefix):
        self.bucket, self.prefix, self.files, self.error, self.gives_up, self.is_final = bucket, prefix, {}, None, False, False
        self.pool = concurrent.futures.ThreadPoolExecutor(AT_ONCE)

    def skip(self, e):
        if not isinstance(e, FileNotFoundError):
            self.unread = e

    def scan(self):
        found, self.unread = {}, None
        for where, dirs, names in os.walk(OUTPUT, onerror=self.skip):
            if where == OUTPUT and OWN in dirs:
                dirs.remove(OWN)
            for name in names:
                path = os.path.join(where, name)
                try:
                    st = os.lstat(path)
                except OSError:
                    continue
                if stat.S_ISREG(st.st_mode):
                    found[path[len(OUTPUT) + 1:]] = (st.st_size, st.st_mtime_ns, st.st_ino)
        return found

    def is_due(self, file, state, is_last, now):
        if file.sent == state:
            return False
        if file.seen != state:
            file.seen, file.seen_at = state, now
        return is_last or now - file.seen_at >= STILL_S or now - file.sent_at >= max(CHANGING_S, 20 * file.cost)

    def send(self, path, file):
        start = time.monotonic()
        try:
            with open(os.path.join(OUTPUT, path), "rb") as f:
                st = os.fstat(f.fileno())
                state = (st.st_size, st.st_mtime_ns, st.st_ino)
                if file.of != state:
                    self.bucket.abort(self.prefix + path, file.come)
                file.sent, file.of = (), state
                self.bucket.put(self.prefix + path, f, st.st_size, file.come)
        except FileNotFoundError:
            return
        file.sent = state
        file.sent_at = time.monotonic()
        file.cost = file.sent_at - start

    def remove(self, path):
        self.bucket.abort(self.prefix + path, self.files[path].come)
        if self.files[path].sent is not None:
            try:
                self.bucket.call("DELETE", self.prefix + path)
            except Failed as e:
                if e.is_busy:
                    raise
                print("still in S3, where removal is refused: %r: %s" % (path, e), file=sys.stderr, flush=True)
        del self.files[path]

    def abort(self):
        for path, file in self.files.items():
            self.bucket.abort(self.prefix + path, file.come, tries=1)

    def attempt(self, work, path, *more):
        """What would befall the others as well (no connection, no keys) ends the turn."""
        if self.gives_up:
            return
        try:
            work(path, *more)
        except Exception as e:
            self.error = "%r: %s" % (path, text_of_error(e))
            self.gives_up |= isinstance(e, Failed) and e.is_busy
            self.is_final &= isinstance(e, PermissionError) or isinstance(e, Failed) and e.is_final

    def turn(self, is_last):
        """Whether all that is there now is in S3."""
        found, now, jobs = self.scan(), time.monotonic(), []
        self.error, self.gives_up = self.unread and text_of_error(self.unread), False
        self.is_final = not self.unread or isinstance(self.unread, PermissionError)
        for path, state in found.items():
            file = self.files.setdefault(path, File())
            if not file.sent_at:
                file.sent_at = now
            if self.is_due(file, state, is_last, now):
                jobs.append(self.pool.submit(self.attempt, self.send, path, file))
        # Files of a directory that cannot be read for a moment were not removed.
        for path in [path for path in self.files if path not in found and not self.unread]:
            jobs.append(self.pool.submit(self.attempt, self.remove, path))
        for job in jobs:
            job.result()
        return not self.error


class Program:
    """Its end: that of all who hold the pipe, or of a process where there are no pipes."""

    def __init__(self):
        path = ATTEMPT + "/alive"
        deadline = time.monotonic() + START_S
        while not os.path.exists(path):
            if time.monotonic() > deadline:
                raise Failed("the program has not begun, or the image has no shell")
            time.sleep(0.2)
        self.pid = self.fd = None
        if stat.S_ISFIFO(os.stat(path).st_mode):
            self.fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        else:
            self.pid = int(text_of(path))

    def has_ended(self):
        try:
            if self.pid is not None:
                os.kill(self.pid, 0)
                return False
            return os.read(self.fd, 1) == b""
        except BlockingIOError:
            return False
        except ProcessLookupError:
            return True


def lost(text):
    text = "not all results are in %s: %s" % (ADDRESS, text)
    print(text, file=sys.stderr, flush=True)
    with open("/dev/termination-log", "w", encoding="utf-8", errors="backslashreplace") as f:
        f.write(text[:1000])


def main():
    rank = FIRST + int(os.environ.get("JOB_COMPLETION_INDEX") or 0) if FIRST >= 0 else 0
    bucket = Bucket(ADDRESS)
    uploader = Uploader(bucket, bucket.prefix + ("/rank-%d/" % rank if rank else "/"))
    program = Program()
    while not program.has_ended():
        begun = time.monotonic()
        if not uploader.turn(False):
            print("not yet in S3: %s" % uploader.error, file=sys.stderr, flush=True)
        time.sleep(max(SCAN_S, 3 * (time.monotonic() - begun)) if uploader.error else SCAN_S)
    deadline, n_final = time.monotonic() + LAST_S, 0
    while not uploader.turn(True):
        # A second time: rights that were given just now may not be known everywhere.
        n_final = n_final + 1 if uploader.is_final else 0
        if time.monotonic() > deadline or n_final > 1:
            uploader.abort()
            lost(str(uploader.error) + (", which no retry mends" if n_final else ""))
            return
        time.sleep(min(10, SCAN_S + LAST_S / 20))


try:
    main()
except Exception as e:
    lost(text_of_error(e))
