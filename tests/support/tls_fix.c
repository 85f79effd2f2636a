/* SPDX-License-Identifier: Apache-2.0 */
#include "support/tls_fix.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void run(const char *const *argv)
{
	int status;
	pid_t pid = fork();
	if (pid == 0) {
		execvp(argv[0], (char *const *)argv);
		_exit(127);
	}
	pid_t r = waitpid(pid, &status, 0);
	assert(r == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	(void)r;
}

static void pair(const struct tls_fix *f, const char *name, char cert[96], char key[96])
{
	snprintf(cert, 96, "%s/%s.pem", f->dir, name);
	snprintf(key, 96, "%s/%s.key", f->dir, name);
}

void tls_fix_make(struct tls_fix *f)
{
	char unused[96];
	strcpy(f->dir, "/tmp/pml_tls_XXXXXX");
	char *made = mkdtemp(f->dir);
	assert(made);
	(void)made;
	run((const char *const[]){ TLS_CERTS_SH, f->dir, NULL });
	pair(f, "ca", f->ca, unused);
	pair(f, "other_ca", f->other_ca, unused);
	pair(f, "server", f->server, f->server_key);
	pair(f, "ip_only", f->ip_only, f->ip_only_key);
	pair(f, "wrong_name", f->wrong_name, f->wrong_name_key);
	pair(f, "expired", f->expired, f->expired_key);
	pair(f, "client", f->client, f->client_key);
}

void tls_fix_remove(struct tls_fix *f)
{
	run((const char *const[]){ "rm", "-rf", f->dir, NULL });
}
