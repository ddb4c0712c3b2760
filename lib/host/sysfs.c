/* SPDX-License-Identifier: Apache-2.0 */
#include "host/sysfs.h"

#include <fcntl.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/str.h"

enum { ENTRIES_MAX = 4096 };

char *sysfs_line(const char *dir, const char *name)
{
	char line[SYSFS_LINE_MAX + 1];
	AUTO_FREE char *path = mem_printf("%s/%s", dir, name);
	AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	if (fd < 0)
		return NULL;
	ssize_t n = read(fd, line, sizeof(line) - 1);
	if (n <= 0)
		return NULL;
	line[n] = '\0';
	line[strcspn(line, "\n")] = '\0';
	return mem_strdup(line);
}

double sysfs_number(const char *dir, const char *name, double scale)
{
	AUTO_FREE char *line = sysfs_line(dir, name);
	int64_t value;

	if (!line || str_to_int(line, 0, INT64_MAX, name, &value, NULL) < 0)
		return -1;
	return (double)value * scale;
}

static int compare(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

void sysfs_list(const char *dir, const char *prefix, struct strv *ret)
{
	AUTO_DIR DIR *stream = opendir(dir);
	struct dirent *entry;

	while (stream && ret->n < ENTRIES_MAX && (entry = readdir(stream)))
		if (str_starts(entry->d_name, prefix))
			strv_addf(ret, "%s/%s", dir, entry->d_name);
	vec_sort(ret, compare);
}
