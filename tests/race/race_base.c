/* SPDX-License-Identifier: Apache-2.0 */
/* What any thread may call, from several at once: metrics, log lines and levels, fault points. */
#include "base/fault.h"
#include "base/log.h"
#include "base/metric.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>

enum { THREADS = 4, ROUNDS = 20000 };

/* clang-format off */
#define RACE_METRICS(F) \
	F(counter,   M_N,    "n_total",      "",   "who=a|b|c|d", "", "rounds") \
	F(gauge,     M_NOW,  "now",          "",   "", "", "shifted up and down") \
	F(histogram, M_TIME, "wait_seconds", "us", "", "10 100 1000", "observed")
/* clang-format on */
enum { RACE_METRICS(METRIC_ENUM) };
static const struct metric_row rows[] = { RACE_METRICS(METRIC_ROW) };
static const struct metric_schema schema = { "race", rows, ARRAY_LEN(rows) };

static struct metrics *metrics;
static struct log log_ = { .svc = "race" };

static void *run(void *arg)
{
	unsigned me = *(unsigned *)arg;
	for (uint64_t i = 0; i < ROUNDS; i++) {
		metric_add(metrics, M_N, me, 1);
		metric_shift(metrics, M_NOW, 0, i % 2 ? -1 : 1);
		metric_observe(metrics, M_TIME, 0, i % 2000);
		if (i % 100 == 0)
			LOG_WARN(&log_, "race", "thread=%u i=%llu", me, (unsigned long long)i);
		if (i % 1000 == 0)
			log_set_level(i % 2000 ? LOG_INFO_L : LOG_WARN_L);
		if (FAULT(alloc))
			metric_get(metrics, M_N, me);
		if (me == 0 && i % 500 == 0)
			fault_arm(FAULT_alloc, 3, 2);
		if (me == 1 && i % 5000 == 0) {
			struct buf b = BUF_INIT(1 << 16);
			metrics_print(metrics, &b);
			assert(buf_err(&b) == ERR_NONE);
			buf_fini(&b);
		}
	}
	return NULL;
}

int main(void)
{
	pthread_t t[THREADS];
	unsigned ids[THREADS];
	enum err e = metrics_new(&schema, &metrics);
	assert(e == ERR_NONE);
	log_.fd = open("/dev/null", O_WRONLY);
	for (unsigned i = 0; i < THREADS; i++) {
		ids[i] = i;
		int r = pthread_create(&t[i], NULL, run, &ids[i]);
		assert(r == 0);
	}
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	for (unsigned i = 0; i < THREADS; i++)
		assert(metric_get(metrics, M_N, i) == ROUNDS);
	assert(metric_get(metrics, M_NOW, 0) == 0);
	assert(metric_get(metrics, M_TIME, 0) == (uint64_t)THREADS * ROUNDS);
	metrics_free(metrics);
	printf("1 passed, 0 failed\n");
	return 0;
}
