/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/kube/pod/pod_copy_words.h"

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "kube/job/job.h"

enum { LIKE_MAX = 64 << 10 };

/*
 * Options are those that GNU, busybox and toybox have in common. The number of bytes is given since
 * old servers cannot pass on the end of stdin.
 */

#define NO_DIR   "44"
#define NO_TOOLS "45"

/* First the results are completed by what the program has left in its tree so far. */
static const char list_sh[] =
	"cd -- \"$1\" || exit " NO_DIR "\n"
	"m=$5\n"
	"case $m in\n"
	"wait)\n"
	"\tuntil [ -e " KUBE_LINGERS " ]; do sleep 0.1 2>/dev/null || sleep 1; done\n"
	"\tm=\n"
	"\t;;\n"
	"announce)\n"
	"\t: >" KUBE_ANNOUNCED "\n"
	"\tm=all\n"
	"\t;;\n"
	"esac\n"
	"if [ \"$m\" ] && [ -f " KUBE_COLLECTOR " ]; then\n"
	"\t/bin/sh " KUBE_COLLECTOR " \"$m\" >/dev/null 2>&1\n"
	"fi\n"
	"now=$(date +%s 2>/dev/null) || now=0\n"
	"dir=$1 py=$2 only=$3 like=$4 path=%P\n"
	"if [ \"$only\" ]; then\n"
	"\tpath=%p\n"
	"\tset -- \"./$only\" -prune -type f\n"
	"\t[ -f \"./$only\" ] || set -- . -prune -type p\n"
	"elif [ \"$like\" ]; then\n"
	"\tset -f\n"
	"\tset --\n"
	"\tIFS='\n'\n"
	"\tfor p in $like; do\n"
	"\t\tcase $p in */*) t=-path ;; *) t=-name ;; esac\n"
	"\t\tset -- \"$@\" -o $t \"$p\"\n"
	"\tdone\n"
	"\tunset IFS\n"
	"\tshift\n"
	"\tset -- . -type f \\( \"$@\" \\)\n"
	"else\n"
	"\tset -- .\n"
	"fi\n"
	"if find . -prune -printf '' >/dev/null 2>&1; then\n"
	"\techo \"nul $now\"\n"
	"\tfind \"$@\" -printf \"%y %m %s %T@ $path\\\\0\"\n"
	"\tprintf 'end\\0'\n"
	"elif find . -prune -exec stat -c '%f %s %Y %n' {} + >/dev/null 2>&1; then\n"
	"\techo \"lines $now\"\n"
	"\tfind \"$@\" -exec stat -c '%f %s %Y %n' {} +\n"
	"\techo end\n"
	"elif command -v python3 >/dev/null 2>&1; then\n"
	"\texec python3 -c \"$py\" \"$dir\" \"$only\" \"$like\"\n"
	"else\n"
	"\texit " NO_TOOLS "\n"
	"fi\n"
	"exit 0\n";

static const char list_py[] =
	"import fnmatch, os, stat, sys, time\n"
	"try:\n"
	"    os.chdir(sys.argv[1])\n"
	"except OSError as e:\n"
	"    sys.exit(" NO_DIR ")\n"
	"out = sys.stdout.buffer\n"
	"out.write(b'nul %d\\n' % time.time())\n"
	"kinds = {stat.S_IFREG: b'f', stat.S_IFDIR: b'd', stat.S_IFLNK: b'l'}\n"
	"only, likes = map(os.fsencode, sys.argv[2:4])\n"
	"likes = likes.split(b'\\n') if likes else []\n"
	"def is_like(path, name):\n"
	"    return any(fnmatch.fnmatchcase(b'./' + path if b'/' in p else name, p) for p in likes)\n"
	"dirs = [b'']\n"
	"while dirs:\n"
	"    at = dirs.pop()\n"
	"    try:\n"
	"        names = sorted(os.listdir(at or b'.'))\n"
	"    except OSError as e:\n"
	"        print(e, file=sys.stderr)\n"
	"        continue\n"
	"    for name in names:\n"
	"        path = at + b'/' + name if at else name\n"
	"        try:\n"
	"            st = os.lstat(path)\n"
	"        except OSError:\n"
	"            continue\n"
	"        kind = kinds.get(stat.S_IFMT(st.st_mode), b'o')\n"
	"        if kind == b'd' and only and not only.startswith(path + b'/'):\n"
	"            continue\n"
	"        if kind == b'd':\n"
	"            dirs.append(path)\n"
	"        if (only and only != path) or (likes and not is_like(path, name)):\n"
	"            continue\n"
	"        if (only or likes) and kind != b'f':\n"
	"            continue\n"
	"        ns = max(st.st_mtime_ns, 0)\n"
	"        out.write(b'%s %o %d %d.%09d %s\\0' % (kind, stat.S_IMODE(st.st_mode), st.st_size,\n"
	"                  ns // 10**9, ns % 10**9, path))\n"
	"out.write(b'end\\0')\n";

static const char tar_sh[] = "cd -- \"$1\" || exit " NO_DIR "\n"
			     "has() { command -v \"$1\" >/dev/null 2>&1; }\n"
			     "if has tar && has xargs && has head; then\n"
			     "\thead -c \"$2\" | xargs -0 -n \"$3\" tar -cf -\n"
			     "elif has python3; then\n"
			     "\texec python3 -c \"$4\" \"$1\" \"$2\"\n"
			     "else\n"
			     "\texit " NO_TOOLS "\n"
			     "fi\n";

/* A file that has become shorter is filled up, as tar does it. */
static const char tar_py[] =
	"import os, sys, tarfile\n"
	"os.chdir(sys.argv[1])\n"
	"class Filled:\n"
	"    def __init__(self, f): self.f = f\n"
	"    def read(self, n):\n"
	"        b = self.f.read(n)\n"
	"        return b + bytes(n - len(b))\n"
	"t = tarfile.open(fileobj=sys.stdout.buffer, mode='w|', format=tarfile.GNU_FORMAT)\n"
	"for p in sys.stdin.buffer.read(int(sys.argv[2])).split(b'\\0')[:-1]:\n"
	"    p = os.fsdecode(p)\n"
	"    t.inodes = {}\n"
	"    try:\n"
	"        i = t.gettarinfo(p)\n"
	"        f = open(p, 'rb') if i and i.isreg() else None\n"
	"    except OSError as e:\n"
	"        print('%s: %s' % (p.encode(errors='replace'), e.strerror), file=sys.stderr)\n"
	"        continue\n"
	"    if i:\n"
	"        i.name = p\n"
	"        t.addfile(i, Filled(f) if f else None)\n"
	"    if f:\n"
	"        f.close()\n"
	"t.close()\n";

static const char part_sh[] =
	"cd -- \"$1\" || exit " NO_DIR "\n"
	"has() { command -v \"$1\" >/dev/null 2>&1; }\n"
	"if has xargs && has head && has tail; then\n"
	"\thead -c \"$2\" | xargs -0 -n 100 sh -c 'for r; do\n"
	"\t\to=${r%% *} r=${r#* }\n"
	"\t\tl=${r%% *} p=${r#* }\n"
	"\t\tif [ ! -f \"$p\" ] || [ -L \"$p\" ] || [ ! -r \"$p\" ]; then\n"
	"\t\t\techo gone\n"
	"\t\t\tcontinue\n"
	"\t\tfi\n"
	"\t\techo \"part $o $l\"\n"
	"\t\t{ tail -c \"+$((o + 1))\" \"$p\"; cat /dev/zero; } 2>/dev/null | head -c \"$l\"\n"
	"\t\ts=$(stat -c %s \"$p\" 2>/dev/null || wc -c <\"$p\") 2>/dev/null || s=0\n"
	"\t\techo \"size $((s))\"\n"
	"\tdone' dlrun\n"
	"elif has python3; then\n"
	"\texec python3 -c \"$3\" \"$1\" \"$2\"\n"
	"else\n"
	"\texit " NO_TOOLS "\n"
	"fi\n";

static const char part_py[] =
	"import os, stat, sys\n"
	"os.chdir(sys.argv[1])\n"
	"out = sys.stdout.buffer\n"
	"for r in sys.stdin.buffer.read(int(sys.argv[2])).split(b'\\0')[:-1]:\n"
	"    o, n, p = r.split(b' ', 2)\n"
	"    o, n = int(o), int(n)\n"
	"    try:\n"
	"        f = open(os.open(p, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), 'rb')\n"
	"    except OSError:\n"
	"        f = None\n"
	"    if not f or not stat.S_ISREG(os.fstat(f.fileno()).st_mode):\n"
	"        out.write(b'gone\\n')\n"
	"        continue\n"
	"    out.write(b'part %d %d\\n' % (o, n))\n"
	"    f.seek(o)\n"
	"    while n:\n"
	"        b = f.read(min(n, 1 << 20)) or bytes(min(n, 1 << 20))\n"
	"        out.write(b)\n"
	"        n -= len(b)\n"
	"    out.write(b'size %d\\n' % os.fstat(f.fileno()).st_size)\n"
	"    f.close()\n"
	"out.flush()\n";

static void add_program(struct strv *ret, bool with_shell, const char *sh, const char *py)
{
	strv_add(ret, with_shell ? "sh" : "python3");
	strv_add(ret, "-c");
	strv_add(ret, with_shell ? sh : py);
	if (with_shell)
		strv_add(ret, "dlrun");
}

void pod_copy_list_words(const char *dir, const char *only, const struct strv *like,
	enum pod_copy_first first, bool with_shell, struct strv *ret)
{
	const char *const words[] = {"", like ? "live" : "all", "announce", "wait"};
	AUTO_BUF struct buf patterns;

	add_program(ret, with_shell, list_sh, list_py);
	strv_add(ret, dir);
	if (with_shell)
		strv_add(ret, list_py);
	strv_add(ret, only ? only : "");
	buf_init(&patterns, LIKE_MAX);
	for (size_t i = 0; like && i < like->n; i++)
		buf_addf(&patterns, "%s%s", i ? "\n" : "", like->v[i]);
	strv_add(ret, patterns.len ? patterns.data : "");
	if (with_shell)
		strv_add(ret, only ? "" : words[first]);
}

void pod_copy_part_words(const char *dir, size_t n_bytes, bool with_shell, struct strv *ret)
{
	add_program(ret, with_shell, part_sh, part_py);
	strv_add(ret, dir);
	strv_addf(ret, "%zu", n_bytes);
	if (with_shell)
		strv_add(ret, part_py);
}

void pod_copy_tar_words(
	const char *dir, size_t n_bytes, bool one_by_one, bool with_shell, struct strv *ret)
{
	add_program(ret, with_shell, tar_sh, tar_py);
	strv_add(ret, dir);
	strv_addf(ret, "%zu", n_bytes);
	strv_add(ret, one_by_one ? "1" : "1000");
	if (with_shell)
		strv_add(ret, tar_py);
}
