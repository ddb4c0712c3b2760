# SPDX-License-Identifier: Apache-2.0
# Results of a pod into S3: python3 -ESc THIS s3://BUCKET/PATH FIRST-RANK SECONDS, beside the program; s3.py is in front of it.
#
# A file goes when it has not changed for a moment, one that keeps changing now and then, and all that is new when
# the program has ended; then the last tries go on for SECONDS, or until all that fails is what no retry mends. The end
# of the program is the end of a pipe that its script holds open.
ADDRESS, FIRST, LAST_S = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
ATTEMPT, OUTPUT, OWN = "/dlrun/attempt", "/dlrun/outputs", ".dlrun-collected"
SCAN_S, STILL_S, CHANGING_S, START_S = 1, 2, 30, 300
PART, SINGLE, AT_ONCE = 8 << 20, 8 << 20, 8


class Results(Bucket):
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
            self.error = "%s: %.300s" % (shown(path), text_of_error(e))
            # One store each: other threads do the same.
            if isinstance(e, Failed) and e.is_busy:
                self.gives_up = True
            if not (isinstance(e, PermissionError) or isinstance(e, Failed) and e.is_final):
                self.is_final = False

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


def shown(path):
    text = repr(path)
    return text if len(text) <= 160 else text[:60] + "..." + text[-97:]


def lost(text):
    text = "not all results are in %s: %s" % (ADDRESS, text)
    print(text, file=sys.stderr, flush=True)
    with open("/dev/termination-log", "w", encoding="utf-8", errors="backslashreplace") as f:
        f.write(text[:1000])


def main():
    rank = FIRST + int(os.environ.get("JOB_COMPLETION_INDEX") or 0) if FIRST >= 0 else 0
    bucket = Results(ADDRESS)
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
            found = uploader.scan()
            n = sum(path not in uploader.files or uploader.files[path].sent != state for path, state in found.items())
            count = "" if uploader.unread else "%d of %d files are missing or old: " % (n, len(found))
            lost("%s%s%s" % (count, uploader.error, ", which no retry mends" if n_final else ""))
            return
        time.sleep(min(10, SCAN_S + LAST_S / 20))


try:
    main()
except Exception as e:
    lost(text_of_error(e))
