/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collect the files that a program leaves in its tree: copy them to the results, and put them into
 * the tree of the next attempt.
 */
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/job/job_impl.h"

enum { SCRIPT_MAX = 64 << 10 };

/* Beside the results, and never a part of them: an empty file for each that was collected (or one
 * with a word in it, where the program itself has written one of that name), and what is being
 * copied now. A file gets its name in the results as a whole, after its mark. */
#define MARKS KUBE_OUTPUT_DIR "/" KUBE_COLLECTED

/* Names that are never collected. */
static const char *const caches[] = {".git", "__pycache__", ".pytest_cache", ".mypy_cache",
	".ruff_cache", ".ipynb_checkpoints", "*.pyc", "*.pyo"};

/*
 * MODE [ARGUMENT…], in the tree:
 *	begin [new]	put what was collected before into the tree; set the time since which
 *			files count (new: the tree was changed here)
 *	live		collect what is looked at while the program runs
 *	all		collect everything so far
 *	final		the same, and say what is missing
 *	sum		what the results are by now (KUBE_JOB_RESULTS)
 * The others are steps of these, for as many paths as one command takes. -cnewer compares the
 * ctime, which no program sets, with the time of a mark's contents. Without it stat tells both;
 * where it knows whole seconds only, the mark has the first one that begins after the tree was
 * made. Names with anything in them pass through: there are no lists of lines.
 */
static const char begin_lines[] =
	"begin)\n"
	"\tn=$1\n"
	"\tif [ -d \"$m\" ]; then\n"
	"\t\tn=new\n"
	"\t\t(cd -- \"$m\" && find . -type f -empty -print0) | xargs -0 -r /bin/sh \"$k\" put\n"
	"\t\t(cd -- \"$m\" && find . -type f ! -empty -print0) | xargs -0 -r /bin/sh \"$k\" put_own\n"
	"\tfi 2>/dev/null\n"
	"\tif ! has_cnewer \"$k\"; then\n"
	"\t\tmark \"$a/start\"\n"
	"\t\tif mark_of \"$a/start\"; then\n"
	"\t\t\ttick\n"
	"\t\telse\n"
	"\t\t\tsleep 1\n"
	"\t\t\tmark \"$a/start\"\n"
	"\t\tfi\n"
	/* The node made that file when the image was there, before the container. */
	"\telif [ \"$n\" ] || ! touch -r /dev/termination-log \"$a/start\" 2>/dev/null; then\n"
	"\t\tmark \"$a/start\"\n"
	"\t\ttick\n"
	"\tfi\n"
	"\tif [ \"$n\" ] || may_move; then\n"
	/* Layers on several file systems have no lasting numbers of directories. */
	"\t\tp=$(names -type f -print 2>/dev/null | head -n 1)\n"
	"\t\ti=%i\n"
	"\t\t[ \"$(stat -c %d -- \"$p\")\" = \"$(stat -c %d .)\" ] || i=-\n"
	"\t\techo \"$i %n\" >\"$a/dirs\"\n"
	"\t\tdirs \"$a/start\"\n"
	"\tfi\n"
	"\t;;\n"
	"put)\n"
	"\trm -f -- \"$@\"\n"
	"\tcd -- \"$o\" && cp -P $(copy_options) --parents -- \"$@\" \"$r/\"\n"
	"\t;;\n"
	"put_own)\n"
	"\tfor p; do\n"
	"\t\tq=${p%.tree}\n"
	"\t\tmkdir -p -- \"${q%/*}\"\n"
	"\t\trm -f -- \"$q\"\n"
	"\t\tcp -P $(copy_options) -- \"$o/$p\" \"$q\"\n"
	"\tdone\n"
	"\t;;\n";

static const char common_lines[] =
	"k=$0 mode=$1 status=0\n"
	"shift\n"
	"umask 002\n"
	"export LC_ALL=C TZ=UTC0\n"
	"has_cnewer() { find . -prune -cnewer \"$1\" >/dev/null 2>&1; }\n"
	"mark() { date '+%Y-%m-%d %H:%M:%S' >\"$1\"; }\n"
	"mark_of() {\n"
	"\ts=$(stat -c %y \"$1\" 2>/dev/null)\n"
	"\tcase $s in *.*[1-9]*) ;; *) read -r s <\"$1\"; return 1 ;; esac\n"
	"}\n"
	"tick() { sleep 0.02 2>/dev/null || sleep 1; }\n"
	/* Directories of the image. An overlay renames none that its layers have, unless
	 * redirect_dir is set for it, or for all (Linux, filesystems/overlayfs.rst). */
	"may_move() {\n"
	"\tread -r x </sys/module/overlay/parameters/redirect_dir && [ \"$x\" = N ] "
	"|| return 0\n"
	"\twhile read -r x p x; do\n"
	"\t\tcase $r/ in \"${p%/}\"/*) f=$x ;; esac\n"
	"\tdone </proc/mounts\n"
	"\tcase $f in *redirect_dir=on*) ;; 'overlay '*) return 1 ;; esac\n"
	"} 2>/dev/null\n"
	"is_there() { [ -e \"$1\" ] || [ -L \"$1\" ]; }\n"
	"copy_options() {\n"
	"\tg='--preserve=mode,timestamps,links --reflink=auto'\n"
	"\tcp $g -- /dev/null \"$a/probe-$$\" 2>/dev/null || g=-p\n"
	"\techo \"$g\"\n"
	"\trm -f \"$a/probe-$$\"\n"
	"}\n"
	/* List candidates for results; $old: an expression that drops entries before names are
	 * tested. */
	"names() {\n"
	"\tfind \"${at:-.}\" -xdev $old ";

static const char changed_lines[] =
	" -prune -o \"$@\"\n"
	"}\n"
	"dirs() {\n"
	"\told='! -type d -o' at=\n"
	"\tread -r i <\"$a/dirs\" || return\n"
	"\tnames -exec stat -c \"$i\" {} + >\"$1.dirs\"\n"
	"} 2>/dev/null\n"
	/* Since when, and conditions. What is older ends before names are looked at: nearly all
	 * files. */
	"changed() {\n"
	"\tf=$1 old= at=\n"
	"\tshift\n"
	"\tif has_cnewer \"$f\"; then\n"
	"\t\told=\"! -type d ! -cnewer $f -o\"\n"
	"\t\tset -- \"$@\" -cnewer \"$f\" -print0\n"
	"\telse\n"
	"\t\tmark_of \"$f\"\n"
	"\t\tset -- \"$@\" -exec /bin/sh \"$k\" since \"$s\" {} +\n"
	"\tfi\n"
	"\tnames \"$@\"\n"
	"}\n"
	/* Files in a directory that was moved as a whole keep their times, so they do not look
	 * changed. */
	"moved() {\n"
	"\tread -r i <\"$a/dirs\" && [ -s \"$1.dirs\" ] || return 0\n"
	"\tchanged \"$1\" -type d | xargs -0 -r stat -c \"$i\" | grep -Fvxf \"$1.dirs\" | {\n"
	"\t\told= top=/ n=0\n"
	"\t\twhile IFS= read -r d && [ $n -lt 1000 ]; do\n"
	"\t\t\tat=${d#* }\n"
	"\t\t\tcase $at in \"$top\"/*) continue ;; ./*) [ -d \"$at\" ] || continue ;; *) continue ;; esac\n"
	"\t\t\ttop=$at n=$((n + 1))\n"
	"\t\t\tnames \\( -type f -o -type l \\) -print0\n"
	"\t\tdone\n"
	"\t}\n"
	"} 2>/dev/null\n"
	"list_all() {\n"
	"\tmoved \"$1\" >\"$a/moved\"\n"
	"\tif [ -s \"$a/moved\" ]; then\n"
	"\t\tchanged \"$1\" \\( -type f -o -type l \\) | sort -zu \"$a/moved\" -\n"
	"\telse\n"
	"\t\tchanged \"$1\" \\( -type f -o -type l \\)\n"
	"\tfi\n"
	"}\n";

/* Of lines "// SIZE TIME ./PATH", which no path has in it: the largest names at the top; of files
 * with parameters those that count (params.h). */
static const char summary_awk[] =
	"function flush(at, top, kind, deep) {\n"
	"\tif (path == \"\") return\n"
	"\tfiles++\n"
	"\tbytes += size\n"
	"\tat = index(path, \"/\")\n"
	"\ttop = at ? substr(path, 1, at) : path\n"
	"\tcount[top]++\n"
	"\tsum[top] += size\n"
	"\tif (path ~ /\\n/ || !match(path, kinds)) return\n"
	"\tkind = substr(path, RSTART)\n"
	"\tsub(/^\\//, \"\", kind)\n"
	"\tdeep = gsub(\"/\", \"/\", path)\n"
	"\tif ((kind in depth) && (deep > depth[kind] || (deep == depth[kind] && time < newest[kind]))) return\n"
	"\tdepth[kind] = deep\n"
	"\tnewest[kind] = time\n"
	"\tparams[kind] = path\n"
	"}\n"
	"/^\\/\\/ / {\n"
	"\tflush()\n"
	"\tsize = $2\n"
	"\ttime = $3\n"
	"\tpath = substr($0, length($2 $3) + 8)\n"
	"\tnext\n"
	"}\n"
	"{ path = path \"\\n\" $0 }\n"
	"END {\n"
	"\tflush()\n"
	"\tfor (top in sum) more++\n"
	"\tshown = 0\n"
	"\tfor (room = 2000; shown < 20; shown++) {\n"
	"\t\tbest = \"\"\n"
	"\t\tfor (top in sum) if (best == \"\" || sum[top] > sum[best]) best = top\n"
	"\t\tif (best == \"\" || (room -= length(best) + 20) < 0) break\n"
	"\t\tname = best\n"
	"\t\tgsub(/\\\\/, \"&&\", name)\n"
	/* Awks differ in the meaning of a backslash in a replacement. */
	"\t\tn = split(name, parts, \"\\n\")\n"
	"\t\tname = parts[1]\n"
	"\t\tfor (i = 2; i <= n; i++) name = name \"\\\\n\" parts[i]\n"
	"\t\tline[shown] = count[best] \" \" sprintf(\"%.0f\", sum[best]) \" \" name\n"
	"\t\tdelete sum[best]\n"
	"\t}\n"
	"\tprintf \"\\n" KUBE_JOB_RESULTS " %d %.0f %d\\n\", files, bytes, more - shown\n"
	"\tfor (i = 0; i < shown; i++) print line[i]\n"
	"\tfor (kind in params) print \"params \" params[kind]\n"
	"}\n";

static const char rest_lines[] =
	/* The names of many, and the times in the same order, unless one is gone meanwhile. */
	"since)\n"
	"\ts=$1 n=0\n"
	"\tshift\n"
	"\tIFS='\n'\n"
	"\ttimes=$(stat -c %z -- \"$@\" 2>/dev/null)\n"
	"\tfor z in $times; do n=$((n + 1)); done\n"
	"\tif [ $n = $# ]; then\n"
	"\t\tfor z in $times; do\n"
	"\t\t\t[ ! \"$z\" \\> \"$s\" ] || printf '%s\\0' \"$1\"\n"
	"\t\t\tshift\n"
	"\t\tdone\n"
	"\telse\n"
	"\t\tfor p; do\n"
	"\t\t\tz=$(stat -c %z -- \"$p\" 2>/dev/null) || continue\n"
	"\t\t\t[ ! \"$z\" \\> \"$s\" ] || printf '%s\\0' \"$p\"\n"
	"\t\tdone\n"
	"\tfi\n"
	"\t;;\n"
	"aged)\n"
	"\tfor p; do\n"
	"\t\tz=$(stat -c '%Z %s' -- \"$p\" 2>/dev/null) && printf '%s %s\\0' \"$z\" \"$p\"\n"
	"\tdone\n"
	"\t;;\n"
	/* Newest first: "TIME SIZE PATH". */
	"fit)\n"
	"\tread -r left <\"$a/left\"\n"
	"\tfor x; do\n"
	"\t\tx=${x#* }\n"
	"\t\tn=${x%% *} p=${x#* }\n"
	"\t\tif [ \"$n\" -le \"$left\" ]; then\n"
	"\t\t\tleft=$((left - n))\n"
	"\t\t\tprintf '%s\\0' \"$p\"\n"
	"\t\telse\n"
	"\t\t\t[ ! -e \"$m/$p\" ] || rm -f -- \"$o/$p\" \"$m/$p\"\n"
	"\t\t\tprintf 'over the size of collect: %s (%s bytes)\\n' \"$p\" \"$n\" >&2\n"
	"\t\tfi\n"
	"\tdone\n"
	"\techo \"$left\" >\"$a/left\"\n"
	"\t;;\n"
	/* Remove from the results what the program has removed since it was collected. */
	"gone)\n"
	"\tfor p; do\n"
	"\t\tp=${p#\"$m\"/}\n"
	"\t\tq=$p\n"
	"\t\t[ ! -s \"$m/$p\" ] || q=${p%.tree}\n"
	"\t\tis_there \"./$q\" && continue\n"
	"\t\trm -f -- \"$o/$p\" \"$m/$p\"\n"
	"\t\twhile case $p in */*) ;; *) false ;; esac; do\n"
	"\t\t\tp=${p%/*}\n"
	"\t\t\trmdir -- \"$o/$p\" \"$m/$p\" 2>/dev/null || break\n"
	"\t\tdone\n"
	"\tdone\n"
	"\t;;\n"
	/* A file is whole or not there: a full disk, or one that was removed meanwhile. */
	"copy)\n"
	"\tg=$(copy_options)\n"
	"\tcp -P $g --parents -- \"$@\" \"$t/\" 2>/dev/null || for p; do\n"
	"\t\tcp -P $g --parents -- \"$p\" \"$t/\" 2>\"$a/why-$$\" && continue\n"
	"\t\trm -f -- \"$t/$p\"\n"
	"\t\tis_there \"$p\" || continue\n"
	"\t\tcat \"$a/why-$$\" >&2\n"
	"\t\tstatus=1\n"
	"\tdone\n"
	"\trm -f \"$a/why-$$\"\n"
	"\tfor p; do\n"
	"\t\tp=${p#./}\n"
	"\t\tis_there \"$t/$p\" || continue\n"
	"\t\tcase $p in */*) [ -d \"$m/${p%/*}\" ] || mkdir -p -- \"$m/${p%/*}\" ;; esac\n"
	"\t\tif is_there \"$o/$p\" && [ ! -f \"$m/$p\" ]; then\n"
	"\t\t\t[ -s \"$m/$p.tree\" ] || printf '%s is in the results already: the one from "
	"the tree is %s.tree\\n' \"$p\" \"$p\" >&2\n"
	"\t\t\tmv -f -- \"$t/$p\" \"$t/$p.tree\"\n"
	"\t\t\techo tree >\"$m/$p.tree\"\n"
	"\t\telse\n"
	"\t\t\t: >>\"$m/$p\"\n"
	"\t\tfi\n"
	"\tdone\n"
	"\t;;\n"
	/* Parents come first; what is new as a whole is moved as a whole. */
	"merge)\n"
	"\tfor d; do\n"
	"\t\t[ -d \"$t/$d\" ] || continue\n"
	"\t\tif ! is_there \"$o/$d\"; then\n"
	"\t\t\tmv -- \"$t/$d\" \"$o/$d\" || status=1\n"
	"\t\telif [ -d \"$o/$d\" ] && [ ! -L \"$o/$d\" ]; then\n"
	"\t\t\tfind \"$t/$d\" -mindepth 1 -maxdepth 1 ! -type d "
	"-exec /bin/sh -c 'mv -f -- \"$@\" \"$0/\"' \"$o/$d\" {} + || status=1\n"
	"\t\telse\n"
	"\t\t\tprintf '%s is not a directory in the results\\n' \"$d\" >&2\n"
	"\t\t\tstatus=1\n"
	"\t\tfi\n"
	"\tdone\n"
	"\t;;\n"
	"sum)\n"
	"\tcd -- \"$o\" || exit\n"
	"\tset -- -path ./" KUBE_COLLECTED " -prune\n"
	"\t[ \"$i\" != 0 ] || set -- \"$@\" -o -path './rank-[1-9]*' -prune\n"
	"\tfind . \\( \"$@\" \\) -o -type f -exec stat -c '// %s %Y %n' {} + 2>/dev/null | awk -v kinds=\"$kinds\" \"$summary\" | {\n"
	"\t\tn=3800\n"
	"\t\twhile IFS= read -r l; do\n"
	"\t\t\tp=${l#params }\n"
	"\t\t\tz=0\n"
	"\t\t\t[ \"$p\" = \"$l\" ] || z=$(wc -c <\"./$p\") || continue\n"
	"\t\t\t[ $((z + ${#l} + 10)) -le $n ] || continue\n"
	"\t\t\tn=$((n - z - ${#l} - 10))\n"
	"\t\t\tif [ \"$p\" = \"$l\" ]; then\n"
	"\t\t\t\tprintf '%s\\n' \"$l\"\n"
	"\t\t\telse\n"
	"\t\t\t\tprintf 'params %s %s\\n' $((z)) \"$p\"\n"
	"\t\t\t\thead -c $((z)) \"./$p\"\n"
	"\t\t\t\techo\n"
	"\t\t\tfi\n"
	"\t\tdone\n"
	"\t} 2>/dev/null\n"
	"\t;;\n"
	"live | all | final)\n"
	"\t[ -e \"$a/start\" ] || exit 0\n"
	"\tuntil ln -s $$ \"$a/busy\" 2>/dev/null; do\n"
	"\t\tkill -0 \"$(readlink \"$a/busy\")\" 2>/dev/null || rm -f \"$a/busy\"\n"
	"\t\ttick\n"
	"\tdone\n"
	"\ttrap 'rm -f \"$a/busy\"' EXIT\n"
	"\trm -rf \"$t\"\n"
	"\t[ $mode = final ] || { mark \"$a/next\"; tick; }\n"
	"\t[ $mode != all ] || dirs \"$a/next\"\n"
	"\tsince=$a/last-$mode\n"
	"\t[ $mode != final ] || since=$a/last-all\n"
	"\t[ -e \"$since\" ] || since=$a/start\n"
	"\tif [ $mode = live ]; then\n"
	"\t\tlive >\"$a/list\"\n"
	"\telse\n"
	"\t\t[ ! -d \"$m\" ] || find \"$m\" -type f -exec /bin/sh \"$k\" gone {} +\n"
	"\t\tlist_all \"$a/start\" >\"$a/list\"\n"
	"\t\tif is_over; then\n"
	"\t\t\txargs -0 /bin/sh \"$k\" aged <\"$a/list\" | sort -z -rn |\n"
	"\t\t\t\txargs -0 -r /bin/sh \"$k\" fit >\"$a/fits\"\n"
	"\t\t\tmv -f \"$a/fits\" \"$a/list\"\n"
	"\t\telif [ \"$since\" != \"$a/start\" ]; then\n"
	"\t\t\tlist_all \"$since\" >\"$a/list\"\n"
	"\t\tfi\n"
	"\tfi\n"
	"\tif [ -s \"$a/list\" ]; then\n"
	"\t\tmkdir -p \"$t\" \"$m\" \"$o\" || exit\n"
	"\t\txargs -0 /bin/sh \"$k\" copy <\"$a/list\" || status=1\n"
	"\t\t(cd -- \"$t\" && find . -type d -print0) | xargs -0 -r /bin/sh \"$k\" merge || status=1\n"
	"\t\trm -rf \"$t\"\n"
	"\tfi\n"
	"\tif [ $mode != final ] && [ $status = 0 ]; then\n"
	"\t\t[ $mode = live ] || mv -f \"$a/next.dirs\" \"$a/last-all.dirs\" 2>/dev/null\n"
	"\t\tmv -f \"$a/next\" \"$a/last-$mode\"\n"
	"\tfi\n"
	"\t;;\n"
	"esac\n"
	"exit $status\n";

/* 'it'\''s' */
static void add_quoted(struct buf *out, const char *text)
{
	buf_adds(out, "'");
	for (const char *at = text; *at; at++)
		if (*at == '\'')
			buf_adds(out, "'\\''");
		else
			buf_add(out, at, 1);
	buf_adds(out, "'");
}

static void add_test(struct buf *out, const char *what, const char *pattern)
{
	AUTO_FREE char *path = str_eq(what, "-path") ? mem_printf("./%s", pattern) : NULL;

	buf_addf(out, " -o %s ", what);
	add_quoted(out, path ? path : pattern);
}

/* A path as a pattern that means nothing else. */
static char *escaped_pattern(const char *path)
{
	AUTO_BUF struct buf out;

	buf_init(&out, SCRIPT_MAX);
	for (; *path; path++) {
		if (strchr("*?[\\", *path))
			buf_adds(&out, "\\");
		buf_add(&out, path, 1);
	}
	return buf_take(&out);
}

/* Volumes are not walked into (-xdev), but one of a single file would be a file of the tree. */
static void add_skipped(const struct job *job, struct buf *out)
{
	const struct kube_run *run = job->run;
	const struct strv none = {0}, *exclude = run->exclude ? run->exclude : &none;

	buf_adds(out, "\\( -name .dlrun-never");
	for (size_t i = 0; i < ARRAY_LEN(caches); i++)
		add_test(out, "-name", caches[i]);
	for (size_t i = 0; i < exclude->n; i++)
		add_test(out, strchr(exclude->v[i], '/') ? "-path" : "-name", exclude->v[i]);
	for (size_t i = 0; i < run->n_data; i++) {
		AUTO_FREE char *path = escaped_pattern(run->data[i].path);
		add_test(out, "-path", path);
	}
	buf_adds(out, " \\)");
}

char *job_collector(const struct job *job)
{
	const struct kube_run *run = job->run;
	unsigned long long most = run->collect_bytes < INT64_MAX ? run->collect_bytes : INT64_MAX;
	AUTO_BUF struct buf out;

	buf_init(&out, SCRIPT_MAX);
	buf_adds(&out, "i=${JOB_COMPLETION_INDEX:-0} a=" KUBE_ATTEMPT_DIR " o=" KUBE_OUTPUT_DIR "\n"
		       "m=" MARKS "/rank-$i t=" MARKS "/new-$i\n");
	if (job->shares_results)
		buf_adds(&out, "[ \"$i\" = 0 ] || o=$o/rank-$i\n");
	buf_adds(&out, "r=");
	add_quoted(&out, run->workdir);
	buf_adds(&out, "\ncd -- \"$r\" || exit\n");
	buf_adds(&out, common_lines);
	add_skipped(job, &out);
	buf_adds(&out, changed_lines);
	buf_adds(&out, "live() {\n"
		       "\tchanged \"$since\" \\( -type f -o -type l \\) "
		       "\\( -name '*tfevents*' -o -name params.json -o -name hparams.yaml "
		       "-o -name args.json -o -path '*/.hydra/config.yaml' -o -path "
		       "'*/.hydra/overrides.yaml' -o -name projector_config.pbtxt -o -name "
		       "tensors.tsv -o -name metadata.tsv -o -name sprite.png -o -name "
		       "'*.pt.trace.json' -o -name '*.pt.trace.json.gz' -o -name "
		       "'tfdbg_events.*' -o -path '*/plugins/profile/*' \\)\n"
		       "}\n");
	buf_addf(&out,
		"is_over() {\n"
		"\techo %llu >\"$a/left\"\n"
		"\tn=$(xargs -0 -r stat -c %%s -- <\"$a/list\" 2>/dev/null | {\n"
		"\t\tn=0\n"
		"\t\twhile read -r b; do n=$((n + b)); done\n"
		"\t\techo $n\n"
		"\t})\n"
		"\t[ \"$n\" -gt %llu ]\n"
		"}\n",
		most, most);
	buf_adds(&out,
		"kinds='(^|/)(params[.]json|args[.]json|hparams[.]ya?ml|[.]hydra/(overrides|config)[.]yaml)$'\n"
		"summary=");
	add_quoted(&out, summary_awk);
	buf_adds(&out, "\ncase $mode in\n");
	buf_adds(&out, begin_lines);
	buf_adds(&out, rest_lines);
	return buf_take(&out);
}
