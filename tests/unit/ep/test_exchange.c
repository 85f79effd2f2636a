/* SPDX-License-Identifier: Apache-2.0 */
/* The bootstrap: all get all, whoever disagrees, stays away or is a stranger is named or shut out. */
#include "ep/exchange.h"
#include "tests/support/leak.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

struct rank {
	char addr[64];
	uint32_t me, n, rounds;
	uint64_t epoch, timeout_us;
	size_t bytes;
	uint64_t delay_us;
	struct ep_exchange *x;
	struct why why;
	enum err err;
	uint32_t wrong;
};

static void fill(uint8_t *p, size_t n, uint32_t rank, uint32_t round)
{
	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)(rank * 31 + round * 7 + i);
}

static void *rank_main(void *arg)
{
	struct rank *r = arg;
	static __thread uint8_t mine[EXCHANGE_BLOB_MAX], want[EXCHANGE_BLOB_MAX],
		all[16 * EXCHANGE_BLOB_MAX];
	usleep((useconds_t)r->delay_us);
	if (!r->x)
		r->err = exchange_socket(r->addr, r->me, r->n, r->timeout_us, &r->x, &r->why);
	for (uint32_t i = 0; i < r->rounds && r->err == ERR_NONE; i++) {
		fill(mine, r->bytes, r->me, i);
		r->err = r->x->all_gather(r->x, r->epoch + i, mine, r->bytes, all,
					  r->timeout_us, &r->why);
		for (uint32_t s = 0; s < r->n && r->err == ERR_NONE; s++) {
			fill(want, r->bytes, s, i);
			r->wrong += memcmp(all + s * r->bytes, want, r->bytes) != 0;
		}
	}
	return NULL;
}

static void run(struct rank *ranks, uint32_t n)
{
	pthread_t th[16];
	for (uint32_t r = 0; r < n; r++)
		pthread_create(&th[r], NULL, rank_main, &ranks[r]);
	for (uint32_t r = 0; r < n; r++)
		pthread_join(th[r], NULL);
}

static void close_all(struct rank *ranks, uint32_t n)
{
	for (uint32_t r = 0; r < n; r++)
		if (ranks[r].x)
			ranks[r].x->close(ranks[r].x);
}

static void make(struct rank *ranks, uint32_t n, const char *kind, size_t bytes)
{
	struct ep_exchange *x[16] = { 0 };
	if (strcmp(kind, "local") == 0)
		cr_assert_eq(exchange_local(n, x), ERR_NONE);
	for (uint32_t r = 0; r < n; r++) {
		ranks[r] = (struct rank){ .me = r,
					  .n = n,
					  .rounds = 3,
					  .epoch = 5,
					  .timeout_us = 5000000,
					  .bytes = bytes,
					  .x = x[r] };
		if (strcmp(kind, "tcp") == 0)
			snprintf(ranks[r].addr, sizeof(ranks[r].addr), "127.0.0.1:%d",
				 20000 + (int)(getpid() % 20000));
		else
			snprintf(ranks[r].addr, sizeof(ranks[r].addr), "/tmp/ep_x.%d",
				 (int)getpid());
	}
}

Test(exchange, all_get_all, .timeout = 30)
{
	static const char *const kinds[] = { "unix", "tcp", "local" };
	static const size_t sizes[] = { 1, 64, EXCHANGE_BLOB_MAX };
	static struct rank ranks[16];
	for (size_t k = 0; k < ARRAY_LEN(kinds); k++)
		for (size_t s = 0; s < ARRAY_LEN(sizes); s++)
			for (uint32_t n = 1; n <= 5; n += 2) {
				make(ranks, n, kinds[k], sizes[s]);
				run(ranks, n);
				for (uint32_t r = 0; r < n; r++) {
					cr_assert_eq(ranks[r].err, ERR_NONE, "%s: %s", kinds[k],
						     ranks[r].why.text);
					cr_assert_eq(ranks[r].wrong, 0);
				}
				close_all(ranks, n);
			}
	NO_LEAKS();
}

Test(exchange, wrong_epoch_and_size_name_both, .timeout = 30)
{
	static struct rank ranks[16];
	make(ranks, 3, "unix", 8);
	ranks[2].epoch = 6;
	for (int r = 0; r < 3; r++)
		ranks[r].timeout_us = 500000; /* those who get no answer wait that long */
	run(ranks, 3);
	cr_assert_eq(ranks[0].err, ERR_CONFLICT);
	cr_assert(strstr(ranks[0].why.text,
			 "rank 2 gives 8 bytes of epoch 6, rank 0 8 of epoch 5"),
		  "%s", ranks[0].why.text);
	close_all(ranks, 3);
	make(ranks, 2, "unix", 8);
	ranks[1].bytes = 16;
	ranks[1].timeout_us = 500000;
	run(ranks, 2);
	cr_assert_eq(ranks[0].err, ERR_CONFLICT);
	cr_assert(strstr(ranks[0].why.text, "rank 1 gives 16 bytes"), "%s", ranks[0].why.text);
	close_all(ranks, 2);
	make(ranks, 2, "local", 8);
	ranks[1].epoch = 9;
	run(ranks, 2);
	cr_assert_eq(ranks[0].err, ERR_CONFLICT);
	cr_assert_eq(ranks[1].err, ERR_CONFLICT);
	close_all(ranks, 2);
	NO_LEAKS();
}

Test(exchange, missing_rank_is_a_time_out, .timeout = 30)
{
	static struct rank ranks[16];
	make(ranks, 3, "unix", 8);
	for (int r = 0; r < 3; r++)
		ranks[r].timeout_us = 300000;
	run(ranks, 2); /* rank 2 never comes */
	cr_assert_eq(ranks[0].err, ERR_TIMED_OUT);
	cr_assert(strstr(ranks[0].why.text, "1 of 3 ranks did not connect in time"), "%s",
		  ranks[0].why.text);
	cr_assert_neq(ranks[1].err, ERR_NONE);
	cr_assert(strstr(ranks[1].why.text, "rank 0"), "%s", ranks[1].why.text);
	close_all(ranks, 2);
	make(ranks, 3, "local", 8);
	for (int r = 0; r < 3; r++)
		ranks[r].timeout_us = 200000;
	run(ranks, 2);
	cr_assert_eq(ranks[0].err, ERR_TIMED_OUT);
	cr_assert_eq(ranks[1].err, ERR_TIMED_OUT);
	/* they may try again, and then all come */
	for (int r = 0; r < 3; r++) {
		ranks[r].err = ERR_NONE;
		ranks[r].timeout_us = 5000000;
	}
	run(ranks, 3);
	for (int r = 0; r < 3; r++)
		cr_assert(ranks[r].err == ERR_NONE && ranks[r].wrong == 0);
	close_all(ranks, 3);
	NO_LEAKS();
}

Test(exchange, rank_zero_that_never_comes, .timeout = 30)
{
	static struct rank ranks[16];
	make(ranks, 2, "unix", 8);
	ranks[1].timeout_us = 200000;
	run(ranks + 1, 1);
	cr_assert_eq(ranks[1].err, ERR_TIMED_OUT);
	cr_assert(strstr(ranks[1].why.text, "rank 0 does not answer at /tmp/ep_x"), "%s",
		  ranks[1].why.text);
	close_all(ranks, 2);
	NO_LEAKS();
}

/* Strangers: silent, with foreign bytes, with a rank out of range. The real ranks still meet. */
static void *stranger(void *arg)
{
	const struct rank *r = arg;
	static const uint32_t hellos[3][6] = { { 0x20544547, 0x2f, 1, 1, 1, 1 },
					       { 0x3158504d, 7, 2, 0, 0, 0 },
					       { 0x3158504d, 1, 99, 0, 0, 0 } };
	for (int i = 0; i < 4; i++) {
		struct sockaddr_un un = { .sun_family = AF_UNIX };
		int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
		snprintf(un.sun_path, sizeof(un.sun_path), "%s", r->addr);
		while (connect(fd, (struct sockaddr *)&un, sizeof(un)) != 0)
			usleep(1000);
		if (i < 3)
			(void)!write(fd, hellos[i], sizeof(hellos[i]));
		char c;
		cr_assert_leq(recv(fd, &c, 1, 0), 0, "a stranger got an answer");
		close(fd);
	}
	return NULL;
}

Test(exchange, strangers_are_shut_out, .timeout = 30)
{
	static struct rank ranks[16];
	pthread_t th;
	make(ranks, 2, "unix", 8);
	ranks[1].delay_us = 300000;
	ranks[0].timeout_us = ranks[1].timeout_us = 10000000;
	pthread_create(&th, NULL, stranger, &ranks[0]);
	run(ranks, 2);
	pthread_join(th, NULL);
	for (int r = 0; r < 2; r++)
		cr_assert(ranks[r].err == ERR_NONE && ranks[r].wrong == 0, "%s",
			  ranks[r].why.text);
	close_all(ranks, 2);
	NO_LEAKS();
}

Test(exchange, addresses_that_are_none, .timeout = 30)
{
	static const struct {
		const char *addr, *text;
	} rows[] = {
		{ "nowhere", "'nowhere' is neither /PATH nor HOST:PORT" },
		{ "/a/path/of/more/than/one/hundred/and/seven/bytes/xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
		  "a socket path has at most 107" },
		{ "/no/such/folder/at/all", "cannot listen at /no/such/folder" },
		{ "127.0.0.1:notaport", "exchange address '127.0.0.1:notaport'" },
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct ep_exchange *x = NULL;
		struct why why = { 0 };
		cr_assert_neq(exchange_socket(rows[i].addr, 0, 2, 100000, &x, &why), ERR_NONE);
		cr_assert(strstr(why.text, rows[i].text), "%s", why.text);
		cr_assert_null(x);
	}
	struct ep_exchange *x = NULL;
	struct why why = { 0 };
	cr_assert_eq(exchange_socket("/tmp/x", 2, 2, 1000, &x, &why), ERR_INVALID_PARAMS);
	cr_assert(strstr(why.text, "rank is 2, allowed are 0 to 1"));
	cr_assert_eq(exchange_socket("/tmp/x", 0, 0, 1000, &x, NULL), ERR_INVALID_PARAMS);
	NO_LEAKS();
}

Test(exchange, blobs_have_a_limit, .timeout = 30)
{
	static struct rank ranks[16];
	static const char *const kinds[] = { "unix", "local" };
	for (int k = 0; k < 2; k++) {
		make(ranks, 1, kinds[k], EXCHANGE_BLOB_MAX);
		run(ranks, 1);
		cr_assert_eq(ranks[0].err, ERR_NONE);
		struct why why = { 0 };
		uint8_t big[1] = { 0 };
		cr_assert_eq(ranks[0].x->all_gather(ranks[0].x, 1, big, EXCHANGE_BLOB_MAX + 1,
						    big, 1000, &why),
			     ERR_TOO_LARGE);
		cr_assert(strstr(why.text, "4097 bytes, at most 4096"));
		close_all(ranks, 1);
	}
	NO_LEAKS();
}
