/* SPDX-License-Identifier: Apache-2.0 */
/* The process that `pomelo up` starts: reads its command line, then is the supervisor. */
#include "bin.h"
#include "conf_up.h"
#include "ctl.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

/* An inherited descriptor, from now on ours alone; -1 when the flag is absent or it is not open. */
static int take_fd(const struct cli *c, const char *flag)
{
	const char *v = cli_value(c, flag);
	int fd = v ? (int)strtol(v, NULL, 10) : -1;
	if (fd < 3 || fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
		return -1;
	return fd;
}

int cmd_supervise(struct cli *c)
{
	struct sup_opts *o = calloc(1, sizeof(*o));
	struct up_conf up;
	if (!o)
		return cli_fail(c, ERR_NO_MEMORY, "no memory");
	o->ready_fd = take_fd(c, "--ready-fd");
	o->lock_fd = take_fd(c, "--lock-fd");
	o->adopt_only = cli_has(c, "--adopt-only");
	umask(077);
	enum err e = o->lock_fd < 0 ? why_set(&c->why, ERR_INVALID_PARAMS,
					      "supervise is started by `pomelo up` alone")
				    : ctl_dirs(c, &o->dir);
	if (e == ERR_NONE)
		e = bin_self(o->self, &c->why);
	if (e == ERR_NONE)
		e = up_conf_read(c, &o->dir, &up);
	if (e != ERR_NONE) {
		free(o);
		return cli_exit_of(e);
	}
	for (size_t i = 0; i < SERVICE_COUNT; i++)
		if (bin_find(&service_rows[i], o->self, getenv("POMELO_BINDIR"), o->bin[i],
			     NULL) != ERR_NONE)
			o->bin[i][0] = '\0';
	for (size_t i = 0; i < c->n_sets; i++)
		o->sets[o->n_sets++] = c->sets[i];
	o->grace_ms = up.stop_ms;
	o->log_bytes = up.log_bytes;
	int code = sup_run(o);
	free(o);
	return code;
}
