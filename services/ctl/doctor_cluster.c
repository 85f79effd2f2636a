/* SPDX-License-Identifier: Apache-2.0 */
/* Facts about a data folder and what runs on it. */
#include "doctor.h"
#include "pml.h"
#include "rpc/auth.h"

#include <arpa/inet.h>
#include <errno.h>
#include <libgen.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static void check_folder(struct doctor *d)
{
	struct why why = { 0 };
	if (!data_exists(&d->dir))
		doctor_say(d, DOCTOR_OK, "data", NULL,
			   "data folder %.160s: not made yet (`pomelo up`)", d->dir.path);
	else if (data_make(&d->dir, &why) != ERR_NONE)
		doctor_say(d, DOCTOR_FAIL, "data",
			   "chown and chmod 700 it, or another --data DIR", "%.200s", why.text);
	else
		doctor_say(d, DOCTOR_OK, "data", NULL, "data folder %.160s", d->dir.path);
}

static void check_secret(struct doctor *d)
{
	struct keyring *k = NULL;
	struct why why = { 0 };
	enum err e = keyring_load(d->dir.secret, &k, &why);
	keyring_free(k);
	if (e == ERR_NONE)
		doctor_say(d, DOCTOR_OK, "secret", NULL, "secret %.160s", d->dir.secret);
	else if (e == ERR_NOT_FOUND && !d->dir.secret_given)
		doctor_say(d, DOCTOR_OK, "secret", NULL,
			   "secret %.160s: not made yet (`pomelo up`)", d->dir.secret);
	else
		doctor_say(d, DOCTOR_FAIL, "secret", "`chmod 600` it, or --secret-file FILE",
			   "%.200s", why.text);
}

/* Of the data folder, or of what it would be made in. */
static void check_disk(struct doctor *d)
{
	char path[PATH_BYTES_MAX];
	struct statvfs v;
	snprintf(path, sizeof(path), "%s", d->dir.path);
	while (statvfs(path, &v) != 0) {
		if (errno != ENOENT || strcmp(path, "/") == 0) {
			doctor_say(d, DOCTOR_FAIL, "disk", "another --data DIR", "%.120s: %s",
				   path, strerror(errno));
			return;
		}
		dirname(path);
	}
	doctor_judge_disk(d, path, (uint64_t)v.f_blocks * v.f_frsize,
			  (uint64_t)v.f_bavail * v.f_frsize, v.f_flag & ST_RDONLY);
}

static bool port_taken(unsigned port)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_port = htons((uint16_t)port),
				  .sin_addr = { htonl(INADDR_LOOPBACK) } };
	int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return false;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	bool taken = bind(fd, (struct sockaddr *)&at, sizeof(at)) != 0 && errno == EADDRINUSE;
	close(fd);
	return taken;
}

/* Default HTTP ports; of a running cluster they are its own, and not looked at. */
static void check_ports(struct doctor *d)
{
	enum { HTTP_PORT_FIRST = 17610 };
	for (unsigned i = 0; i < SERVICE_COUNT && !d->runs; i++)
		doctor_judge_port(d, service_rows[i].name, HTTP_PORT_FIRST + i,
				  port_taken(HTTP_PORT_FIRST + i));
}

static void check_service(struct doctor *d, const struct pml_service_status *s)
{
	static const char remedy[] = "`pomelo status`, and its log in DIR/log";
	if (s->code != PML_ERR_NONE) {
		doctor_say(d, DOCTOR_FAIL, "service", remedy, "%s: %.180s", s->name, s->error);
		return;
	}
	if (s->ready)
		doctor_say(d, DOCTOR_OK, "service", NULL, "%s: ready", s->name);
	else
		doctor_say(d, DOCTOR_FAIL, "service", remedy, "%s: not ready: %.150s", s->name,
			   s->n_reasons ? s->reasons[0] : "no reason given");
	doctor_judge_release(d, s->name, s->release);
}

static void check_services(struct doctor *d)
{
	struct pml_error err = PML_ERROR_INIT;
	struct pml *p = NULL;
	struct pml_op *op = NULL;
	if (!d->runs) {
		doctor_say(d, DOCTOR_OK, "service", NULL,
			   "no service runs on this data folder");
		return;
	}
	int e = ctl_open(d->c, &d->dir, &p, &err);
	if (e == PML_ERR_NONE)
		e = pml_status(p, NULL, NULL, &op, &err);
	if (e != PML_ERR_NONE)
		doctor_say(d, DOCTOR_FAIL, "service", "see the message", "%.200s", err.text);
	for (size_t i = 0; e == PML_ERR_NONE && i < pml_op_n_status(op); i++) {
		struct pml_service_status s = PML_SERVICE_STATUS_INIT;
		if (pml_op_status(op, i, &s) == PML_ERR_NONE)
			check_service(d, &s);
	}
	pml_op_free(op);
	pml_close(p);
}

void doctor_cluster(struct doctor *d)
{
	d->runs = run_any_held(d->dir.run);
	check_folder(d);
	check_secret(d);
	check_disk(d);
	check_ports(d);
	check_services(d);
}
