/* SPDX-License-Identifier: Apache-2.0 */
#include "sock_fix.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "store/shmsock_priv.h"
#include "rpc/auth_crypto.h"

static void listen_there(struct sock_fix *f)
{
	struct shmsock_opts o = { .loop = &f->loop,
				  .keys = f->keys,
				  .pool = f->x.p,
				  .path = f->path,
				  .conns_max = 4,
				  .ask_ms = 500 };
	struct why why = { 0 };
	cr_assert_eq(shmsock_listen(&o, &f->s, &why), ERR_NONE, "%s", why.text);
}

struct keyring *sock_fix_keys(void)
{
	static const uint8_t secret[AUTH_KEY_BYTES] = "the cluster's secret";
	struct keyring *k = NULL;
	(void)!keyring_new(secret, NULL, &k);
	return k;
}

void sock_fix_init(struct sock_fix *f)
{
	struct pool_backing *b;
	*f = (struct sock_fix){ 0 };
	(void)snprintf(f->root, sizeof(f->root), "/tmp/pomelo-test-sock-XXXXXX");
	cr_assert_not_null(mkdtemp(f->root));
	(void)snprintf(f->dir, sizeof(f->dir), "%s/pool", f->root);
	(void)snprintf(f->path, sizeof(f->path), "%s/agent.fd", f->root);
	cr_assert_eq(pool_folder_open(f->dir, &b, NULL), ERR_NONE);
	store_fix_init(&f->x, b);
	f->keys = sock_fix_keys();
	cr_assert_not_null(f->keys);
	cr_assert_eq(loop_open(&f->loop), ERR_NONE);
	listen_there(f);
}

static void on_closed(void *ctx)
{
	*(bool *)ctx = true;
}

static void stop_listening(struct sock_fix *f)
{
	f->closed = false;
	shmsock_close(f->s, on_closed, &f->closed);
	while (!f->closed)
		loop_run_once(&f->loop, true);
}

void sock_fix_restart(struct sock_fix *f)
{
	struct pool_backing *b;
	stop_listening(f);
	store_fix_kill(&f->x);
	pool_backing_free(f->x.b);
	cr_assert_eq(pool_folder_open(f->dir, &b, NULL), ERR_NONE);
	f->x.b = f->x.po.backing = b;
	cr_assert_eq(store_fix_open(&f->x), ERR_NONE, "%s", f->x.why.text);
	listen_there(f);
}

void sock_fix_fini(struct sock_fix *f)
{
	stop_listening(f);
	loop_close(&f->loop);
	keyring_free(f->keys);
	store_fix_kill(&f->x);
	cr_assert_eq(mempool_remove(f->x.b, NULL), ERR_NONE);
	pool_backing_free(f->x.b);
	unlink(f->path);
	cr_assert_eq(rmdir(f->dir), 0);
	cr_assert_eq(rmdir(f->root), 0);
}

void sock_fix_turn(struct sock_fix *f)
{
	loop_run_once(&f->loop, false);
	(void)nanosleep(&(struct timespec){ .tv_nsec = 500000 }, NULL);
}

void sock_fix_turns(struct sock_fix *f, int n)
{
	while (n-- > 0)
		sock_fix_turn(f);
}

static struct sockaddr_un address(const struct sock_fix *f)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	memcpy(a.sun_path, f->path, strlen(f->path));
	return a;
}

int sock_fix_connect(struct sock_fix *f)
{
	struct sockaddr_un a = address(f);
	int c = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	cr_assert_eq(connect(c, (struct sockaddr *)&a, sizeof(a)), 0, "%s", strerror(errno));
	return c;
}

size_t sock_fix_recv(struct sock_fix *f, int c, uint8_t out[SHMSOCK_MSG_MAX])
{
	for (;;) {
		ssize_t n = recv(c, out, SHMSOCK_MSG_MAX, MSG_DONTWAIT);
		if (n >= 0)
			return (size_t)n;
		cr_assert_eq(errno, EAGAIN);
		sock_fix_turn(f);
	}
}

int sock_fix_impostor(struct sock_fix *f)
{
	struct sockaddr_un a = address(f);
	unlink(f->path);
	int l = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	cr_assert_eq(bind(l, (struct sockaddr *)&a, sizeof(a)), 0);
	cr_assert_eq(listen(l, 4), 0);
	return l;
}

size_t sock_fix_record_ask(struct sock_fix *f, uint8_t out[SHMSOCK_MSG_MAX])
{
	uint8_t in[SHMSOCK_MSG_MAX], key[AUTH_KEY_BYTES];
	struct shmsock_challenge ch;
	struct shmsock_ask_msg m = { .role = ROLE_CLIENT, .tenant = "default", .write = true };
	int c = sock_fix_connect(f);
	size_t n = sock_fix_recv(f, c, in);
	cr_assert_eq(shmsock_get_challenge(BYTES(in, n), &ch), ERR_NONE);
	cr_assert_eq(keyring_role_key(f->keys, 0, ROLE_CLIENT, "default", key), ERR_NONE);
	cr_assert_eq(shmsock_ask_proof(key, ch.nonce, &m, m.mac), ERR_NONE);
	close(c);
	return shmsock_put_ask(out, &m);
}

void sock_fix_drop(struct shmpool_fds *fds, int conn)
{
	close(fds->ctl);
	close(fds->gen);
	close(fds->session);
	for (uint32_t i = 0; i < fds->n_segments; i++)
		close(fds->data[i]);
	close(conn);
}
