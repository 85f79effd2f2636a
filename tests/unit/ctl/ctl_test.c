/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl_test.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

void scratch_init(struct scratch *s)
{
	snprintf(s->path, sizeof(s->path), "/tmp/pomelo-ctl-XXXXXX");
	cr_assert_not_null(mkdtemp(s->path));
}

static int drop(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

void scratch_fini(struct scratch *s)
{
	nftw(s->path, drop, 16, FTW_DEPTH | FTW_PHYS);
}

const char *scratch_at(const struct scratch *s, const char *name)
{
	static char text[8][256];
	static unsigned next;
	char *t = text[next++ % 8];
	snprintf(t, sizeof(text[0]), "%s/%s", s->path, name);
	return t;
}

void scratch_write(const struct scratch *s, const char *name, const char *text, unsigned mode)
{
	int fd = open(scratch_at(s, name), O_WRONLY | O_CREAT | O_TRUNC, mode);
	cr_assert_geq(fd, 0);
	cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	cr_assert_eq(fchmod(fd, mode), 0);
	close(fd);
}

struct where scratch_where(const struct scratch *s)
{
	struct where w = { 0 };
	snprintf(w.path, sizeof(w.path), "%s/data", s->path);
	snprintf(w.run, sizeof(w.run), "%s/data/run", s->path);
	snprintf(w.secret, sizeof(w.secret), "%s/data/secret", s->path);
	return w;
}

void ran_do(struct ran *r, const struct cmd *cmds, const char *words)
{
	char text[1024], *argv[64] = { "pomelo" };
	int argc = 1;
	size_t n_out, n_err;
	*r = (struct ran){ 0 };
	snprintf(text, sizeof(text), "%s", words);
	char *save, *w = strtok_r(text, " ", &save);
	for (; w && argc < 63; w = strtok_r(NULL, " ", &save))
		argv[argc++] = w;
	argv[argc] = NULL;
	FILE *out = open_memstream(&r->out, &n_out), *err = open_memstream(&r->err, &n_err);
	r->cli = (struct cli){ .cmds = cmds, .out = out, .err = err };
	r->code = cli_main(&r->cli, argc, argv);
	fclose(out);
	fclose(err);
}

void ran_fini(struct ran *r)
{
	free(r->out);
	free(r->err);
}
