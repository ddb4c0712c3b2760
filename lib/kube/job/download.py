# SPDX-License-Identifier: Apache-2.0
# Data of a pod from S3, in front of the program; s3.py is in front of it: python3 -ESc THIS shared|own POD
# NAME s3://BUCKET/PATH BYTES...: the objects below each PATH, and how much of them may be kept (0: no limit). At the end
# its message has a line "dlrun: data VERSION NAME" for each that has versions.
#
# What lies in TOP is shared with other pods, if it is not the pod's own:
#	KEY/objects/XX/NAME  a whole object of that PATH. NAME follows from key, size and ETag, or from the content
#	KEY/parts/NAME       an object that is being fetched, of its final size; .got: its pieces that are there. Locked
#	                     by the process that fetches it
#	KEY/lock             held while it is decided what comes and what goes
#	runs/POD/N           the tree of the N-th data for that pod: hard links to the files above
#	runs/POD/state/lock  held by this program, and then by the pod's own. fetching: the former has not ended.
#	                     started: the latter has begun. A run whose lock is free has ended, and its links go
# So a file that no pod reads has one name, and only such a file is removed to make room.
TOP, MESSAGE = "/dlrun/s3/s3", "/dev/termination-log"
SEGMENT, BLOCK, THREADS, PROCESSES, PATIENT, GAP_S, MTIME = 32 << 20, 1 << 20, 16, 4, 12, 3600, 946684800
HEX = "0123456789abcdef"
ENTRIES_MAX, EMPTY_PAGES_MAX, PARTS_MAX, RACES_MAX = 4 << 20, 100, 10000, 100
IS_SHARED, POD = sys.argv[1] == "shared", sys.argv[2]

# The first process of a container has no other handler.
signal.signal(signal.SIGTERM, lambda *_: os._exit(143))


CHANGED = "PreconditionFailed", "NoSuchKey", "status 412", "status 404"


class Changed(Exception):
    """An object is not what was listed."""


def size_text(n):
    return "%.1f GiB" % (n / 2 ** 30) if n >= 2 ** 30 else "%.1f MiB" % (n / 2 ** 20)


def locked(path, how):
    """The file, or None where another process has it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(fd, how)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def is_same(fd, path):
    """Whether that is still the name of the file, which nobody has removed or made anew."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except OSError:
        return False


def is_version(text):
    return len(text) == 18 and text.startswith("d-") and not text[2:].strip(HEX)


def remove(path):
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def remove_ended():
    """The trees of pods that have ended, whose files are then the cache's alone."""
    runs = TOP + "/runs/"
    for pod in os.listdir(runs):
        try:
            remove_run(runs + pod)
        except OSError:
            pass  # A pod has it, or one with other data removes it. What cannot be removed stays.


def remove_run(run):
    lock = run + "/state/lock"
    try:
        fd, was_locked = os.open(lock, os.O_RDWR), True
    except FileNotFoundError:
        # It begins just now, or somebody was killed here.
        if time.time() - os.stat(run).st_mtime <= GAP_S:
            return
        os.makedirs(run + "/state", exist_ok=True)
        fd, was_locked = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666), False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Nobody has it between this program and the pod's own.
        is_over = not was_locked or any(os.path.exists(run + name) for name in ("/state/fetching", "/state/started"))
        if is_same(fd, lock) and (is_over or time.time() - os.fstat(fd).st_mtime > GAP_S):
            # The same pod may begin anew meanwhile.
            gone = "%s/runs/%s" % (TOP, os.urandom(16).hex())
            os.rename(run, gone)
            os.unlink(gone + "/state/lock")
            shutil.rmtree(gone, ignore_errors=True)
    finally:
        os.close(fd)


class Entry:
    def __init__(self, line):
        # sum: SHA-256 of a file of a version; of other objects the ETag. kind: d, l (then key is the target), f, x.
        self.kind, self.path, self.size, self.key, self.sum, self.is_named = json.loads(line)
        text = self.path if self.is_named else "%s\n%s\n%d" % (self.key, self.sum, self.size)
        self.name = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:40]
        if self.is_named:
            # File systems limit the number of links.
            self.name = self.sum + self.kind + (self.name[:2] if self.size < 65536 else "")


class Data:
    def __init__(self, n, name, address, limit):
        self.name, self.address, self.limit, self.read = name, address, limit, None
        self.bucket = Bucket(address.rstrip("/"), keeps=True, tries=PATIENT)
        self.prefix = self.bucket.prefix + "/" if self.bucket.prefix else ""
        path, _, version = self.bucket.prefix.rpartition("@")
        self.version = self.bucket.prefix if is_version(version) else None
        key = "%s\n%s\n%s" % (self.bucket.endpoint, self.bucket.name, path if self.version else self.bucket.prefix)
        self.top = "%s/%s/" % (TOP, hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:16])
        self.tree = "%s/runs/%s/%d" % (TOP, POD, n)
        self.list = self.tree + ".list"
        self.segments = None

    # The list.

    def page(self, token):
        params = {"list-type": "2", "prefix": self.prefix, "encoding-type": "url"}
        if token:
            params["continuation-token"] = token
        _, body = self.bucket.call("GET", "", params)
        page = ElementTree.fromstring(body)
        space = page.tag[:-len("ListBucketResult")]
        for item in page.iter(space + "Contents"):
            found = {e.tag[len(space):]: e.text or "" for e in item}
            yield found
        self.token = page.findtext(space + "NextContinuationToken") if page.findtext(space + "IsTruncated") == "true" else None
        if self.token == token and token or page.findtext(space + "IsTruncated") == "true" and not self.token:
            raise Failed("the list of %s cannot be continued on this server" % self.address)

    def current(self):
        """The version that is read, by its path; None: plain objects."""
        try:
            name = self.bucket.call("GET", self.bucket.prefix + "@current")[1].decode().strip()
        except Failed as e:
            if e.code not in ("NoSuchKey", "AccessDenied", "status 404", "status 403"):
                raise
            if "404" not in e.code and e.code != "NoSuchKey":
                print("%s@current may not be read: the objects below %s are" % (self.address, self.address), flush=True)
            return None
        if not is_version(name):
            raise Failed("%s@current does not name a version" % self.address)
        return self.bucket.prefix + "@" + name

    def objects(self):
        self.token, n_empty = None, 0
        while True:
            is_empty = True
            for found in self.page(self.token):
                is_empty = False
                key = os.fsdecode(urllib.parse.unquote_to_bytes(found["Key"].replace("+", " ")))
                path = key[len(self.prefix):]
                # Consoles make such objects for directories.
                if path and not path.endswith("/"):
                    yield "f", path, int(found["Size"]), key, found["ETag"].strip('"')
            n_empty = n_empty + 1 if is_empty else 0
            if n_empty > EMPTY_PAGES_MAX:
                raise Failed("the list of %s does not end" % self.address)
            if not self.token:
                return

    def files_of(self, version):
        """What the list of a version says (lib/app/data/version.h)."""
        def take(response):
            with open(self.tree + ".version", "wb") as f:
                shutil.copyfileobj(response, f)
                if str(f.tell()) != response.headers.get("Content-Length", str(f.tell())):
                    raise ValueError("the response ended early")
        try:
            self.bucket.call("GET", version + ".list", sink=take)
        except Failed as e:
            if e.code in ("NoSuchKey", "status 404"):
                raise Failed("s3://%s/%s is no version that is there" % (self.bucket.name, version), e.code)
            raise
        line = b""
        with open(self.tree + ".version", "rb") as f:
            for line in f:
                words = [os.fsdecode(urllib.parse.unquote_to_bytes(word)) for word in line.rstrip(b"\n").split(b" ")]
                if words[0] == "f":
                    kind = "x" if int(words[1], 8) & 0o100 else "f"
                    yield kind, words[4], int(words[2]), version + "/" + words[4], words[3]
                elif words[0] in ("d", "l"):
                    yield words[0], words[2], 0, words[1], ""
        if line != b"end\n":
            raise Failed("the list of %s is not complete" % version)

    def write_list(self):
        total = n = n_entries = 0
        version = self.version or self.current()
        self.read = version and version.rpartition("@")[2]
        if version:
            print("%s: version %s" % (self.address, self.read), flush=True)
        with open(self.list, "w") as f:
            for entry in self.files_of(version) if version else self.objects():
                is_file = entry[0] in "fx"
                is_bad = is_file and version and (len(entry[4]) != 64 or entry[4].strip(HEX))
                if any(part in ("", ".", "..") for part in entry[1].split("/")) or "\0" in entry[1] or entry[2] < 0 or is_bad:
                    raise Failed("%r in %s cannot be the path of a file" % (entry[1], self.address))
                f.write(json.dumps(entry + (bool(is_file and version),)) + "\n")
                total += entry[2]
                n += is_file
                n_entries += 1
                if n_entries > ENTRIES_MAX:
                    raise Failed("%s has more than %d objects" % (self.address, ENTRIES_MAX))
        if not n and not version:
            raise Failed("%s has no objects" % self.address)
        if self.limit and total > self.limit:
            raise Failed("%s has %s, which is more than cache: %s" % (self.address, size_text(total), size_text(self.limit)))
        return n, total

    def entries(self):
        with open(self.list) as f:
            for line in f:
                yield Entry(line)

    # What is there, and room for the rest.

    def object(self, entry):
        return "%sobjects/%s/%s" % (self.top, entry.name[:2], entry.name)

    def is_good(self, path, entry):
        try:
            st = os.stat(path)
        except FileNotFoundError:
            return False
        # A change of the content changes its time, too.
        if st.st_size == entry.size and st.st_mtime == MTIME:
            return True
        os.unlink(path)
        return False

    def link(self, entry, made):
        """A name in the tree for the object, or for the part that becomes it. Whether it is whole."""
        to, path, part = "%s/%s" % (self.tree, entry.path), self.object(entry), self.top + "parts/" + entry.name
        parent = os.path.dirname(to)
        if parent not in made:
            self.make_parent(parent)
            made.clear()
            made.add(parent)
        if entry.kind == "l":
            os.symlink(entry.key, to)
        elif entry.kind == "d":
            os.makedirs(to, exist_ok=True)
        elif not entry.size:
            os.close(os.open(to, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o777 if entry.kind == "x" else 0o666))
        if entry.kind in "dl" or not entry.size:
            return True
        for _ in range(RACES_MAX):
            is_there = self.is_good(path, entry) or self.make_part(path, part, entry)
            try:
                os.link(path if is_there else part, to)
                return is_there
            except FileNotFoundError:
                pass  # Another pod has made an object of the part.
            except FileExistsError:
                if os.path.isdir(to):
                    raise Failed("%s has both %s and objects below it" % (self.address, entry.key))
                os.unlink(to)
        raise Changed(entry.key)

    def make_part(self, path, part, entry):
        """Whether the object is there already."""
        if not os.path.exists(part):
            remove(part + ".got")
        fd = os.open(part, os.O_RDWR | os.O_CREAT, 0o666)
        os.ftruncate(fd, entry.size)
        os.close(fd)
        # Somebody may have made an object of it just now.
        if not self.is_good(path, entry):
            return False
        remove(part)
        return True

    def make_parent(self, parent):
        try:
            os.makedirs(parent, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            at = parent
            while not os.path.lexists(at) or os.path.isdir(at):
                at = os.path.dirname(at)
            # Some tools make empty objects for directories.
            if os.stat(at).st_size:
                raise Failed("%s has both %s and objects below it" % (self.address, at[len(self.tree) + 1:]))
            os.unlink(at)
            os.makedirs(parent, exist_ok=True)
        # A link of the list leads nowhere else.
        if os.path.realpath(parent) != os.path.realpath(self.tree) + parent[len(self.tree):]:
            raise Failed("%s has both %s and objects below it" % (self.address, parent[len(self.tree) + 1:]))

    def prepare(self):
        """The tree, of files that may be yet to come: how many, and their bytes."""
        n = size = 0
        made = set()
        lock = locked(self.top + "lock", fcntl.LOCK_EX)
        try:
            remove_ended()
            for entry in self.entries():
                if not self.link(entry, made):
                    n, size = n + 1, size + entry.size
            if self.limit:
                self.make_room()
        finally:
            os.close(lock)
        return n, size

    def files(self):
        for at, _, names in os.walk(self.top):
            for name in names:
                if name != "lock" and not name.endswith(".got"):
                    path = os.path.join(at, name)
                    try:
                        yield path, os.lstat(path)
                    except FileNotFoundError:
                        pass

    def make_room(self):
        used = sum(st.st_size for _, st in self.files())
        if used <= self.limit:
            return
        found = [(st.st_ctime, st.st_size, path) for path, st in self.files() if st.st_nlink == 1]
        # The time of the last link tells when a pod has used it last.
        for _, size, path in sorted(found):
            if used <= self.limit:
                return
            remove(path + ".got")
            remove(path)
            used -= size
        if used > self.limit:
            raise Failed("%s: cache: %s is %s too small for it and for what other pods that run on this storage read" % (
                self.address, size_text(self.limit), size_text(used - self.limit)))

    # The objects.

    def fetch(self, entry, how):
        """Whether it is there; False: somebody else fetches it."""
        path, part = self.object(entry), self.top + "parts/" + entry.name
        while True:
            try:
                fd = os.open(part, os.O_RDWR)
            except FileNotFoundError:
                if os.path.exists(path):
                    return True
                raise Changed(entry.key)
            try:
                try:
                    fcntl.flock(fd, how)
                except BlockingIOError:
                    return False
                # The process that had the lock has made an object of the part.
                if not is_same(fd, part):
                    continue
                self.get(entry, fd, part)
                os.fchmod(fd, 0o777 if entry.kind == "x" else 0o666)
                os.utime(fd, (MTIME, MTIME))
                if IS_SHARED:
                    os.fsync(fd)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                try:
                    os.rename(part, path)
                except FileNotFoundError:
                    continue
                return True
            finally:
                os.close(fd)

    def get(self, entry, fd, part):
        before = None
        for _ in range(3):
            digest = self.get_once(entry, fd, part)
            if not digest or digest == entry.sum:
                break
            # Not all servers take ETags from the content: those get the same twice.
            if digest == before and not entry.is_named:
                break
            before = digest
            remove(part + ".got")
        else:
            raise Failed("%s in %s is not what the list says, each time that it is read" % (entry.key, self.address))
        remove(part + ".got")

    def get_once(self, entry, fd, part):
        """The sum that the content should have; None: not known."""
        if entry.size <= SEGMENT:
            digest = self.get_range(entry, fd, 0, entry.size)
            return self.of_parts(entry, fd) if digest and "-" in entry.sum else digest
        got = os.open(part + ".got", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            had = {int(line) for line in os.read(got, BLOCK).split(b"\n")[:-1] if line.isdigit()}
            jobs = [self.segments.submit(self.get_segment, entry, fd, got, at) for at in range(0, entry.size, SEGMENT) if at not in had]
            try:
                tells = all([job.result() for job in jobs])
            finally:
                for job in jobs:
                    job.cancel()
                concurrent.futures.wait(jobs)
        finally:
            os.close(got)
        return self.of_parts(entry, fd) if tells else None

    def get_segment(self, entry, fd, got, at):
        tells = self.get_range(entry, fd, at, min(SEGMENT, entry.size - at))
        # The bytes are there before it is said that they are.
        if IS_SHARED:
            os.fdatasync(fd)
        os.write(got, b"%d\n" % at)
        return tells

    def get_range(self, entry, fd, offset, size):
        """The sum of a whole object, of a range True; None: where the ETag does not tell of the content."""
        def take(response):
            if size != entry.size and response.status != 206:
                raise ValueError("the server has no ranges")
            digest = self.sum(entry) if size == entry.size else None
            block, at, end = memoryview(bytearray(min(BLOCK, size))), offset, offset + size
            while at < end:
                data = block[:response.readinto(block[:end - at])]
                if not data:
                    raise ValueError("the response ended early")
                if digest:
                    digest.update(data)
                self.write(fd, data, at)
                at += len(data)
            if response.read(1):
                raise ValueError("the response is longer than was listed")
            way = response.headers.get("x-amz-server-side-encryption", "")
            is_apart = way.startswith("aws:kms") or response.headers.get("x-amz-server-side-encryption-customer-algorithm")
            if is_apart and not entry.is_named:
                return None
            return digest.hexdigest() if digest else True

        headers = {} if entry.is_named else {"If-Match": '"%s"' % entry.sum}
        if size != entry.size:
            headers["Range"] = "bytes=%d-%d" % (offset, offset + size - 1)
        try:
            return self.bucket.call("GET", entry.key, headers=headers, sink=take)[1]
        except Failed as e:
            if e.code in CHANGED:
                raise Changed(entry.key)
            raise

    @staticmethod
    def write(fd, data, at):
        try:
            while data:
                n = os.pwrite(fd, data, at)
                data, at = data[n:], at + n
        except OSError as e:
            raise Failed("the storage of the cache: %s" % e.strerror, "local")

    @staticmethod
    def sum(entry):
        return hashlib.sha256() if entry.is_named else hashlib.md5()

    def of_parts(self, entry, fd):
        digest, _, n = entry.sum.partition("-")
        if n and (not n.isdigit() or int(n) > PARTS_MAX):
            return None
        size = entry.size
        if n:
            try:
                headers, _ = self.bucket.call("HEAD", entry.key, {"partNumber": "1"}, headers={"If-Match": '"%s"' % entry.sum})
            except Failed as e:
                if e.code in CHANGED:
                    raise Changed(entry.key)
                if e.code and not e.is_busy:
                    return None
                raise
            size = int(headers.get("Content-Length") or 0)
            # Parts of several sizes.
            if not size or -(-entry.size // size) != int(n):
                return None

        def one(at):
            part, end = self.sum(entry), min(at + size, entry.size)
            while at < end:
                data = os.pread(fd, min(BLOCK, end - at), at)
                if not data:
                    break
                part.update(data)
                at += len(data)
            return part

        sums = list(self.segments.map(one, range(0, entry.size, size)))
        if not n:
            return sums[0].hexdigest()
        return "%s-%d" % (hashlib.md5(b"".join(s.digest() for s in sums)).hexdigest(), len(sums))

    # Many at once.

    def fetch_all(self, mine, n):
        """Fetch the entries whose number is mine, those that no other process fetches first."""
        self.segments = concurrent.futures.ThreadPoolExecutor(THREADS)
        free = threading.Semaphore(2 * THREADS)
        errors, busy = [], []

        def one(entry, how):
            try:
                if not errors and not self.fetch(entry, how):
                    busy.append(entry)
            except Exception as e:
                errors.append(e)
            finally:
                free.release()

        with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
            for i, entry in enumerate(self.entries()):
                if i % n == mine and entry.kind in "fx" and entry.size and not errors and not os.path.exists(self.object(entry)):
                    free.acquire()
                    pool.submit(one, entry, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
            for entry in list(busy):
                free.acquire()
                pool.submit(one, entry, fcntl.LOCK_EX)
        if errors:
            raise errors[0]

    def work(self, n_missing, missing):
        """Several processes, as one does not do more than one thing at a time."""
        n = min(PROCESSES, os.cpu_count() or 1, n_missing, n_missing // 16 + missing // (2 * SEGMENT) + 1)
        begin, end = os.pipe()
        children = []
        for mine in range(n):
            child = os.fork()
            if child == 0:
                code = 0
                try:
                    self.fetch_all(mine, n)
                except Changed:
                    code = 3
                except BaseException as e:
                    os.write(end, text_of_error(e)[:1000].encode("utf-8", "backslashreplace") + b"\n")
                    code = 1
                os._exit(code)
            children.append(child)
        os.close(end)
        codes = [os.waitpid(child, 0)[1] for child in children]
        with os.fdopen(begin, "rb") as f:
            said = f.read().decode().split("\n")[0]
        if any(code not in (0, 3 << 8) for code in codes):
            raise Failed(said or "what fetches objects was killed (memory?)")
        if any(codes):
            raise Changed()

    def run(self):
        for path in self.top + "objects", self.top + "parts":
            os.makedirs(path, exist_ok=True)
        for _ in range(5):
            shutil.rmtree(self.tree, ignore_errors=True)
            os.makedirs(self.tree)
            try:
                n, size = self.write_list()
                n_missing, missing = self.prepare()
                print("%s: %d objects, %s; %d of them, %s, are fetched" % (
                    self.address, n, size_text(size), n_missing, size_text(missing)), flush=True)
                if n_missing:
                    self.work(n_missing, missing)
                remove(self.list)
                remove(self.tree + ".version")
                return
            except Changed:
                print("%s changes: it is listed again" % self.address, flush=True)
        raise Failed("%s changes all the time" % self.address)


def begin(state):
    """The lock, which nobody is about to remove."""
    while True:
        try:
            os.makedirs(state, exist_ok=True)
            fd = locked(state + "/lock", fcntl.LOCK_SH)
        except (FileNotFoundError, FileExistsError):
            continue
        if is_same(fd, state + "/lock"):
            os.close(os.open(state + "/fetching", os.O_WRONLY | os.O_CREAT, 0o666))
            remove(state + "/started")
            return fd
        os.close(fd)


def main():
    os.umask(0)
    state = "%s/runs/%s/state" % (TOP, POD)
    lock = begin(state)
    names = ""
    for i in range(3, len(sys.argv), 3):
        try:
            data = Data(i // 3 - 1, sys.argv[i], sys.argv[i + 1], int(sys.argv[i + 2]))
            data.run()
        except Exception as e:
            # Its files are others' then, and need not be kept for it.
            shutil.rmtree("%s/runs/%s" % (TOP, POD), ignore_errors=True)
            return "%s: %s" % (sys.argv[i], text_of_error(e)), 1
        if data.read:
            names += "dlrun: data %s %s\n" % (data.read, data.name)
    os.utime(lock)
    remove(state + "/fetching")
    return names, 0


text, code = main()
if code:
    print(text, file=sys.stderr, flush=True)
with open(MESSAGE, "w", encoding="utf-8", errors="backslashreplace") as f:
    f.write(text[:4000])
sys.exit(code)
