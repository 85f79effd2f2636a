/* SPDX-License-Identifier: Apache-2.0 */
/* Listening addresses: ports, socket files and who owns them. */
#include "rpc_both.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

TestSuite(listen, .timeout = 20);

static enum err listen_why(struct rpc_fix *f, const char *addr, struct why *why)
{
	*why = (struct why){ 0 };
	return rpc_server_listen(f->srv, addr, NULL, 0, why);
}

Test(listen, the_kernels_port_is_told)
{
	struct rpc_fix f;
	char second[64];
	struct why why = { 0 };
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	cr_assert_neq(strcmp(f.addr, "tcp://127.0.0.1:0"), 0);
	cr_assert_eq(rpc_server_listen(f.srv, "tcp://[::1]:0", second, sizeof(second), &why),
		     ERR_NONE, "%s", why.text);
	cr_assert(strncmp(second, "tcp://[::1]:", 12) == 0 && strcmp(second + 12, "0") != 0);
	const char *a = second;
	struct rpc_client_opts o = { .addrs = &a, .n_addrs = 1 };
	struct rpc_client *cl = rpc_fix_client(&f, &o);
	struct fix_call c = { .method = FIX_ECHO_M };
	rpc_fix_call(&f, cl, &c);
	cr_assert_eq(c.err, ERR_NONE, "%s", c.call.why.text);
	rpc_fix_close_client(&f, cl);
	rpc_fix_close(&f);
	NO_LEAKS();
}

Test(listen, a_taken_port)
{
	struct rpc_fix f;
	struct why why;
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	cr_assert_eq(listen_why(&f, f.addr, &why), ERR_EXISTS);
	cr_assert(strstr(why.text, f.addr), "%s", why.text);
	cr_assert(strstr(why.text, "choose another address"), "%s", why.text);
	cr_assert_neq(listen_why(&f, "tcp://192.0.2.1:0", &why), ERR_NONE);
	cr_assert(strstr(why.text, "no interface here"), "%s", why.text);
	cr_assert_eq(listen_why(&f, "tcp://no-such-host.invalid:0", &why), ERR_INVALID_PARAMS);
	cr_assert_eq(listen_why(&f, "udp://x", &why), ERR_INVALID_PARAMS);
	rpc_fix_close(&f);
	NO_LEAKS();
}

Test(listen, the_socket_file)
{
	struct rpc_fix f;
	struct stat st;
	char addr[64];
	struct why why;
	rpc_fix_open(&f, ipc_addr(addr), NULL);
	const char *path = addr + strlen("ipc://");
	cr_assert_eq(stat(path, &st), 0);
	cr_assert(S_ISSOCK(st.st_mode));
	cr_assert_eq(st.st_mode & 07777, 0600);
	cr_assert_eq(listen_why(&f, addr, &why), ERR_EXISTS);
	cr_assert(strstr(why.text, "another process listens there"), "%s", why.text);
	rpc_fix_close(&f);
	cr_assert_eq(stat(path, &st), -1, "removed with its listener");
	NO_LEAKS();
}

/* Left behind by a process that was killed: nobody listens, so it goes. */
Test(listen, a_stale_socket_file)
{
	struct rpc_fix f;
	char addr[64];
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	strcpy(un.sun_path, ipc_addr(addr) + strlen("ipc://"));
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	cr_assert_eq(bind(fd, (struct sockaddr *)&un, sizeof(un)), 0);
	close(fd);
	rpc_fix_open(&f, addr, NULL);
	struct rpc_client *cl = rpc_fix_client(&f, NULL);
	struct fix_call c = { .method = FIX_ECHO_M };
	rpc_fix_call(&f, cl, &c);
	cr_assert_eq(c.err, ERR_NONE);
	rpc_fix_close_client(&f, cl);
	rpc_fix_close(&f);
	NO_LEAKS();
}

Test(listen, other_files_are_not_ours_to_remove)
{
	struct rpc_fix f;
	char addr[64];
	struct why why;
	struct stat st;
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	const char *path = ipc_addr(addr) + strlen("ipc://");
	close(open(path, O_CREAT | O_WRONLY, 0600));
	cr_assert_eq(listen_why(&f, addr, &why), ERR_EXISTS);
	cr_assert(strstr(why.text, "no socket"), "%s", why.text);
	cr_assert_eq(stat(path, &st), 0);
	unlink(path);
	cr_assert_neq(listen_why(&f, "ipc:///no/such/folder/x.sock", &why), ERR_NONE);
	cr_assert(strstr(why.text, "no such file"), "%s", why.text);
	rpc_fix_close(&f);
	NO_LEAKS();
}

/* Someone else took the path over while we ran: their file stays. */
Test(listen, a_replaced_socket_file_stays)
{
	struct rpc_fix f;
	char addr[64];
	struct stat st;
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	rpc_fix_open(&f, ipc_addr(addr), NULL);
	strcpy(un.sun_path, addr + strlen("ipc://"));
	unlink(un.sun_path);
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	cr_assert_eq(bind(fd, (struct sockaddr *)&un, sizeof(un)), 0);
	rpc_fix_close(&f);
	cr_assert_eq(stat(un.sun_path, &st), 0);
	close(fd);
	unlink(un.sun_path);
	NO_LEAKS();
}

Test(listen, a_path_too_long)
{
	struct rpc_fix f;
	char addr[200] = "ipc:///tmp/";
	struct why why;
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	memset(addr + strlen(addr), 'p', 110);
	cr_assert_eq(listen_why(&f, addr, &why), ERR_TOO_LARGE);
	cr_assert(strstr(why.text, "--run-dir"), "%s", why.text);
	rpc_fix_close(&f);
	NO_LEAKS();
}

/* Root may be anyone; so this one runs only as root, as someone else. The mode is opened first. */
Test(listen, another_user_is_refused)
{
	struct rpc_fix f;
	char addr[64];
	if (geteuid() != 0)
		cr_skip_test("needs root, to become somebody else");
	rpc_fix_open(&f, ipc_addr(addr), NULL);
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	strcpy(un.sun_path, addr + strlen("ipc://"));
	chmod(un.sun_path, 0666);
	pid_t pid = fork();
	if (pid == 0) {
		char b;
		int fd = socket(AF_UNIX, SOCK_STREAM, 0);
		if (setuid(65534) != 0 || connect(fd, (struct sockaddr *)&un, sizeof(un)) != 0)
			_exit(2);
		_exit(read(fd, &b, 1) == 0 ? 0 : 1); /* closed at once */
	}
	int status = -1;
	RPC_FIX_UNTIL(&f, rpc_fix_counters(&f).conns_refused == 1, 3000);
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%d", status);
	cr_assert_eq(rpc_fix_counters(&f).conns_refused, 1);
	cr_assert_eq(rpc_fix_lines(&f, true, "FORBIDDEN"), 1);
	cr_assert_eq(rpc_fix_lines(&f, true, "uid 65534"), 1);
	rpc_fix_close(&f);
	NO_LEAKS();
}
