/* SPDX-License-Identifier: Apache-2.0 */
#include "xfer/lookup.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <uv.h>

#include "rpc/addr.h"
#include "xfer/pipe.h"

struct xf_lookup {
	struct loop *loop;
	uv_getaddrinfo_t query;
	struct timer timer;
	void (*done)(void *arg, enum err e, const struct xf_addr *a, const char *text);
	void *arg;
	bool dropped; /* only the resolver's answer is still to come */
};

bool xf_addr_digits(const char *text, struct xf_addr *out)
{
	struct addr a;
	struct xf_addr r = { 0 };
	if (addr_parse(text, &a, NULL) != ERR_NONE || a.scheme != ADDR_TCP)
		return false;
	const char *host = addr_known_host(a.host);
	if (uv_ip4_addr(host, a.port, (struct sockaddr_in *)&r.sa) == 0)
		r.n = sizeof(struct sockaddr_in);
	else if (uv_ip6_addr(host, a.port, (struct sockaddr_in6 *)&r.sa) == 0)
		r.n = sizeof(struct sockaddr_in6);
	else
		return false;
	*out = r;
	return true;
}

bool xf_addr_is_loopback(const struct xf_addr *a)
{
	char host[NI_MAXHOST] = "";
	return getnameinfo((const struct sockaddr *)&a->sa, a->n, host, sizeof(host), NULL, 0,
			   NI_NUMERICHOST) == 0 &&
	       xf_is_loopback(host);
}

static void tell(struct xf_lookup *q, enum err e, const struct xf_addr *a, const char *text)
{
	q->dropped = true;
	timer_stop(q->loop, &q->timer);
	q->done(q->arg, e, a, text);
}

static void on_answer(uv_getaddrinfo_t *r, int status, struct addrinfo *res)
{
	struct xf_lookup *q = container_of(r, struct xf_lookup, query);
	struct xf_addr a = { 0 };
	if (!q->dropped && status == 0 && res && res->ai_addrlen <= sizeof(a.sa)) {
		memcpy(&a.sa, res->ai_addr, res->ai_addrlen);
		a.n = res->ai_addrlen;
		tell(q, ERR_NONE, &a, "");
	} else if (!q->dropped) {
		tell(q, ERR_UNREACHABLE, NULL, status ? uv_strerror(status) : "no address");
	}
	uv_freeaddrinfo(res);
	free(q);
}

static void on_late(struct timer *t)
{
	struct xf_lookup *q = container_of(t, struct xf_lookup, timer);
	(void)uv_cancel((uv_req_t *)&q->query); /* on_answer comes all the same */
	tell(q, ERR_TIMED_OUT, NULL, "the name lookup does not end");
}

enum err xf_lookup(struct loop *l, const char *text, uint32_t ms,
		   void (*done)(void *arg, enum err e, const struct xf_addr *a,
				const char *text),
		   void *arg, struct xf_lookup **out)
{
	struct addr a;
	char port[8];
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV };
	if (addr_parse(text, &a, NULL) != ERR_NONE || a.scheme != ADDR_TCP)
		return ERR_INVALID_PARAMS;
	struct xf_lookup *q = calloc(1, sizeof(*q));
	if (!q)
		return ERR_NO_MEMORY;
	q->loop = l;
	q->done = done;
	q->arg = arg;
	(void)snprintf(port, sizeof(port), "%u", a.port);
	if (uv_getaddrinfo(loop_uv(l), &q->query, on_answer, a.host, port, &hints) != 0) {
		free(q);
		return ERR_UNREACHABLE;
	}
	timer_start(l, &q->timer, clock_after_ms(loop_now_ns(l), ms), on_late);
	*out = q;
	return ERR_NONE;
}

void xf_lookup_drop(struct xf_lookup *q)
{
	q->dropped = true;
	timer_stop(q->loop, &q->timer);
	(void)uv_cancel((uv_req_t *)&q->query);
}
