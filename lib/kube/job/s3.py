# SPDX-License-Identifier: Apache-2.0
# A client of S3 in a pod, in front of upload.py and of download.py. The pod's only image is that of the run: standard
# library only, Python 3.6.
import base64, concurrent.futures, datetime, email.utils, errno, fcntl, hashlib, hmac, http.client, json, os, shutil, ssl
import signal, stat, sys, threading, time, urllib.error, urllib.parse, urllib.request, xml.etree.ElementTree as ElementTree

TRIES, BODY_MAX = 6, 32 << 20
# Refusals that befall all files alike.
FINAL_OF_ALL = ("NoSuchBucket", "InvalidBucketName", "SignatureDoesNotMatch", "AllAccessDisabled", "AccountProblem", "NotSignedUp")
# Refusals of one that a new try may mend, and words of those of a server that is busy.
PASSING = ("NoSuchUpload", "InvalidPart", "InvalidPartOrder", "BadDigest", "XAmzContentSHA256Mismatch", "IncompleteBody",
           "EntityTooSmall", "InternalError", "ClientDisconnected")
BUSY = ("SlowDown", "Throttl", "TooManyRequests", "RequestLimit", "PriorRequest", "RequestTimeout")
METADATA = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254").rstrip("/")


class Failed(Exception):
    """The code of S3, or a text. is_busy: the others would fare alike; is_final: no retry mends it."""

    def __init__(self, text, code=None, is_busy=False, is_final=False):
        Exception.__init__(self, text)
        self.code, self.is_busy, self.is_final = code, is_busy or code in FINAL_OF_ALL, is_final


class Refused(Exception):
    def __init__(self, status, headers, body):
        Exception.__init__(self, "status %d" % status)
        self.status, self.headers, self.body = status, headers, body


# A response that is cut is none of OSError.
UNCLEAR = OSError, ValueError, TypeError, LookupError, http.client.HTTPException, ElementTree.ParseError


def text_of_error(e):
    return str(e) or type(e).__name__


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None


def check_headers(headers):
    # Python's own message would show the secret.
    if not all(value.isprintable() for value in headers.values()):
        raise Failed("keys or tokens that are not plain text", is_busy=True, is_final=True)


def ask(url, method="GET", headers=None, data=None, timeout=30, direct=False):
    check_headers(headers or {})
    request = urllib.request.Request(url, data, headers or {}, method=method)
    opener = urllib.request.build_opener(NoRedirect, *([urllib.request.ProxyHandler({})] if direct else []))
    with opener.open(request, timeout=timeout) as response:
        return response.headers, response.read()


def body_of(response):
    """The whole body: read(N) does not tell that a body was cut."""
    body = response.read(BODY_MAX + 1) if response.length is None else response.read() if response.length <= BODY_MAX else None
    if body is None or len(body) > BODY_MAX:
        raise ValueError("the response is too long")
    return body


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
    secure = None

    def __init__(self, address, keeps=False, tries=TRIES):
        """keeps: connections, one for each thread."""
        self.keeps, self.tries, self.own = keeps, tries, threading.local()
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

    def connect(self, base):
        """And what stands in front of a path in a request."""
        whole = urllib.parse.urlsplit(base)
        if whole.scheme not in ("http", "https") or not whole.hostname:
            raise Failed("the endpoint %s is not a URL" % base, "endpoint")
        more, make = {}, http.client.HTTPConnection
        if whole.scheme == "https":
            Bucket.secure = Bucket.secure or ssl.create_default_context(cafile=os.environ.get("AWS_CA_BUNDLE") or None)
            more, make = {"context": Bucket.secure}, http.client.HTTPSConnection
        proxy = urllib.request.getproxies().get(whole.scheme)
        if not proxy or urllib.request.proxy_bypass(whole.hostname):
            return make(whole.hostname, whole.port, timeout=30, **more), "", {}
        proxy = urllib.parse.urlsplit(proxy if "//" in proxy else "http://" + proxy)
        login = {}
        if proxy.username:
            words = urllib.parse.unquote("%s:%s" % (proxy.username, proxy.password or ""))
            login["Proxy-Authorization"] = "Basic " + base64.b64encode(words.encode()).decode()
        made = make(proxy.hostname, proxy.port or 80, timeout=30, **more)
        if whole.scheme == "https":
            made.set_tunnel(whole.hostname, whole.port or 443, login)
            return made, "", {}
        return made, base, login

    def exchange(self, base, method, path, headers, data, sink):
        """The headers of the response, and its body, or what sink has made of it."""
        check_headers(headers)
        while True:
            kept = getattr(self.own, "kept", None)
            self.own.kept = None
            is_old = kept and kept[0] == base
            made, before, login = kept[1] if is_old else self.connect(base)
            response = None
            try:
                made.request(method, before + path, data, dict(headers, **login))
                response = made.getresponse()
                if response.status >= 300:
                    raise Refused(response.status, response.headers, response.read(65536))
                result = response.headers, (sink or body_of)(response)
                if self.keeps and response.isclosed():
                    self.own.kept = base, (made, before, login)
                else:
                    made.close()
                return result
            except (ConnectionError, http.client.BadStatusLine):
                made.close()
                # The server has closed it meanwhile.
                if not is_old or response:
                    raise
            except BaseException:
                made.close()
                raise

    def send(self, method, key, params, data, keys, more, sink):
        base, path = self.place()
        path += "/" + urllib.parse.quote(key.encode("utf-8", "surrogateescape"), safe="/~")
        query = "&".join(
            "%s=%s" % (k, urllib.parse.quote(v.encode("utf-8", "surrogateescape"), safe="~")) for k, v in sorted(params.items()))
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
        return self.exchange(base, method, path + ("?" + query if query else ""), dict(headers, **more), data, sink)

    def refused(self, error, keys, used):
        """The reason of a refusal where the same may be sent again at once. used: the region of the request."""
        region = error.headers.get("x-amz-bucket-region")
        try:
            found = {e.tag.split("}")[-1]: e.text for e in ElementTree.fromstring(error.body).iter()}
        except ElementTree.ParseError:
            found = {}
        code, region = (found.get("Code") or "status %d" % error.status)[:64], region or found.get("Region")
        text = "".join(c if c.isprintable() else "?" for c in "%s: %s" % (code, (found.get("Message") or "")[:200]))
        if code in ("ExpiredToken", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId"):
            Keys.forget(keys)
        elif code == "RequestTimeTooSkewed" and error.headers.get("Date"):
            self.skew = email.utils.parsedate_to_datetime(error.headers["Date"]).timestamp() - time.time()
        elif region and region != used and error.status in (301, 307, 400):
            self.region = region
        else:
            is_busy = error.status >= 500 or error.status == 429 or any(word in code for word in BUSY)
            # What a proxy says without a code of S3 may pass, and so do conflicts and locks.
            is_final = found.get("Code") and 400 <= error.status < 500 and error.status not in (408, 409, 423, 425, 499)
            raise Failed(text, code, is_busy, bool(is_final) and not is_busy and code not in PASSING)
        return text

    def call(self, method, key, params=None, data=None, headers=None, sink=None, tries=None):
        last, wait_s, n_healed = None, 0, 0
        for n in range(tries or self.tries):
            time.sleep(wait_s)
            wait_s = min(10, 0.4 * 2 ** n) * (0.5 + 0.5 * os.urandom(1)[0] / 255)
            try:
                keys, used = Keys.get(), self.region
            except Failed as e:
                last = e
                if e.is_final:
                    break
                continue
            try:
                return self.send(method, key, params or {}, data, keys, headers or {}, sink)
            except Refused as e:
                try:
                    n_healed += 1
                    wait_s = 0
                    # Keys of the environment stay what they are.
                    last = Failed(self.refused(e, keys, used), is_busy=True, is_final=n_healed > 3 and Keys.until == float("inf"))
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


