/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of one connection, as the sp engine parses them. Input: a byte of flags, a byte that
 * seeds the sizes of reads, then the stream. The same stream is fed in two ways, by random reads and
 * in one piece: both must end alike and deliver the same frames; what is held is given back.
 */
#include "rpc/sp_frame.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

#define SCRATCH	 (128u << 10)
#define MAX	 (256u << 10)
#define HELD_MAX (300u << 10)

struct stream {
	struct sp_rx rx;
	uint64_t held, sum, n_frames;
	uint32_t stop_every;
};

static void on_frame(struct sp_rx *rx, struct bytes body, uint8_t *owned)
{
	struct stream *s = container_of(rx, struct stream, rx);
	size_t hdr;
	assert(body.n >= 4 && body.n <= rx->max);
	if (sp_req_hdr(body, &hdr))
		assert(hdr >= 4 && hdr <= 4 * SP_HOPS_MAX && hdr <= body.n);
	s->n_frames++;
	for (size_t i = 0; i < body.n; i++)
		s->sum = s->sum * 31 + body.p[i];
	if (owned) {
		*rx->held -= body.n;
		free(owned);
	}
	if (s->stop_every && s->n_frames % s->stop_every == 0)
		rx->stop = true;
}

static enum err settle(struct stream *s, const char **text)
{
	enum err e = ERR_NONE;
	while (e == ERR_NONE && s->rx.stop && !s->rx.starved)
		e = sp_rx_resume(&s->rx, text);
	return e;
}

/* All of it, in reads of at most `step` bytes (0: random from seed). */
static enum err run(struct stream *s, const uint8_t *p, size_t n, size_t step, uint32_t seed)
{
	static uint8_t scratch[SCRATCH];
	const char *text = NULL;
	enum err e = ERR_NONE;
	while (n > 0 && e == ERR_NONE && !s->rx.starved) {
		size_t room, want = step;
		uint8_t *to = sp_rx_room(&s->rx, scratch, SCRATCH, &room);
		assert(room > 0);
		seed = seed * 1103515245 + 12345;
		if (want == 0)
			want = 1 + (seed >> 16) % 300;
		size_t m = MIN_OF(MIN_OF(want, n), room);
		memcpy(to, p, m);
		e = sp_rx_feed(&s->rx, scratch, m, &text);
		if (e == ERR_NONE)
			e = settle(s, &text);
		p += m;
		n -= m;
	}
	assert(e == ERR_NONE || text);
	return e;
}

static void open_stream(struct stream *s, uint8_t flags)
{
	*s = (struct stream){ .rx = { .ipc = flags & 1,
				      .peer_proto = flags & 2 ? SP_PROTO_REP : SP_PROTO_REQ,
				      .max = flags & 4 ? 4096 : MAX,
				      .held_max = HELD_MAX,
				      .greeted = flags & 8,
				      .on_frame = on_frame } };
	s->rx.held = &s->held;
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	if (n < 2)
		return 0;
	struct stream a, b;
	open_stream(&a, p[0]);
	open_stream(&b, p[0]);
	a.stop_every = p[0] & 16 ? 3 : 0;
	enum err ea = run(&a, p + 2, n - 2, 0, p[1]);
	enum err eb = run(&b, p + 2, n - 2, SCRATCH, 0);
	assert(ea == eb && a.n_frames == b.n_frames && a.sum == b.sum);
	sp_rx_fini(&a.rx);
	sp_rx_fini(&b.rx);
	assert(a.held == 0 && b.held == 0);
	return 0;
}
