/* SPDX-License-Identifier: Apache-2.0 */
/* The network, what befalls whom, and the events there are. */
#include "tests/model/world_priv.h"

#include <stdio.h>
#include <string.h>

enum { POOL_ROOM = 56 << 10 }; /* bytes of a holder's files */

static struct world
	*world_of; /* the one that is entered: the sinks' ctx moves with the block */

struct world *world_entered(void)
{
	return world_of;
}

void world_broken(struct world *w, const char *text)
{
	if (!w->broken)
		w->broken = text;
}

struct w_version *world_version(struct world *w, uint64_t version)
{
	for (uint32_t i = 0; i < w->n_versions; i++)
		if (w->versions[i].version == version)
			return &w->versions[i];
	return NULL;
}

struct w_msg *world_send(struct world *w, enum w_msg_kind kind)
{
	static struct w_msg lost;
	if (w->n_msgs == W_MSGS_MAX) {
		w->overflow = true;
		memset(&lost, 0, sizeof(lost));
		return &lost;
	}
	struct w_msg *m = &w->msgs[w->n_msgs++];
	memset(m, 0, sizeof(*m));
	m->kind = kind;
	return m;
}

static struct w_msg msg_take(struct world *w, unsigned i)
{
	struct w_msg m = w->msgs[i];
	memmove(&w->msgs[i], &w->msgs[i + 1], (w->n_msgs - i - 1) * sizeof(m));
	w->n_msgs--;
	return m;
}

static void deliver(struct world *w, struct w_msg *m)
{
	switch (m->kind) {
	case M_CMD:
	case M_COMMIT:
	case M_PUBLISH_REP:
	case M_CONFIRM_REP:
		to_holder(w, m);
		break;
	case M_PUT_GRANT:
	case M_REMOVE_REP:
	case M_QUERY_REP:
	case M_COMMIT_REP:
		client_deliver(w, m);
		break;
	default:
		to_master(w, m);
	}
	msg_free(m);
}

/* ---- lives ---- */

/* Drops what a death takes with it. */
static void forget(struct world *w, bool (*of)(const struct w_msg *m, unsigned i), unsigned i)
{
	uint32_t to = 0;
	for (uint32_t k = 0; k < w->n_msgs; k++) {
		if (of(&w->msgs[k], i))
			msg_free(&w->msgs[k]);
		else
			w->msgs[to++] = w->msgs[k];
	}
	w->n_msgs = to;
}

/* Connections break: what came to the dead one, and, unless kept, what it had sent. */
static bool of_holder(const struct w_msg *m, unsigned i)
{
	bool to = m->kind == M_CMD || m->kind == M_COMMIT || m->kind == M_PUBLISH_REP ||
		  m->kind == M_CONFIRM_REP;
	bool from = m->kind == M_CMD_REP || m->kind == M_PUBLISH || m->kind == M_CONFIRM ||
		    m->kind == M_REPORT || m->kind == M_REGISTER || m->kind == M_COMMIT_REP;
	return (to || (from && !world_of->cfg->kept)) && m->holder == i;
}

static bool of_master(const struct w_msg *m, unsigned i)
{
	(void)i;
	bool to = m->kind == M_PUT_START || m->kind == M_REMOVE || m->kind == M_QUERY ||
		  m->kind == M_REGISTER || m->kind == M_PUBLISH || m->kind == M_CONFIRM ||
		  m->kind == M_REPORT || m->kind == M_CMD_REP;
	bool from = m->kind == M_CMD || m->kind == M_PUT_GRANT || m->kind == M_REMOVE_REP ||
		    m->kind == M_QUERY_REP || m->kind == M_PUBLISH_REP ||
		    m->kind == M_CONFIRM_REP;
	return to ? !world_of->cfg->kept : from && !world_of->cfg->kept;
}

static void holder_dies(struct world *w, unsigned i)
{
	struct w_holder *h = &w->holders[i];
	forget(w, of_holder, i);
	holder_remember(h);
	pool_memory_killed(h->backing);
	hold_close(h->hold);
	mempool_close(h->pool);
	h->hold = NULL;
	h->pool = NULL;
	memset(&h->pull, 0, sizeof(h->pull));
	h->up = false;
}

/* The first `durable` of the appends under way reached the disk. */
static void master_dies(struct world *w, unsigned durable)
{
	forget(w, of_master, 0);
	for (unsigned i = 0; i < durable; i++)
		(void)!append_apply(w, w->appends[i]);
	w->n_appends = 0;
	w->dying = true;
	mind_free(w->mind);
	w->dying = false;
	w->mind = NULL;
	w->left.master_deaths--;
}

struct world *world_new(const struct w_config *cfg)
{
	struct world *w = calloc(1, sizeof(*w));
	world_of = w;
	w->cfg = cfg;
	w->left = cfg->budget;
	if (meta_state_new(1, &w->meta) != ERR_NONE)
		abort();
	for (unsigned i = 0; i < W_HOLDERS; i++) {
		char *room = malloc(POOL_ROOM + 64);
		room += -(uintptr_t)room & 63;
		if (pool_memory_new_at(room, POOL_ROOM, &w->holders[i].backing) != ERR_NONE)
			abort();
		holder_start(w, i);
		sessions_open(&w->holders[i]);
	}
	master_start(w);
	for (unsigned c = 0; c < W_CLIENTS; c++) /* the library asks for it first */
		w->clients[c].term = meta_term(w->meta);
	/* everything quiet: both holders known and merged */
	for (unsigned i = 0; i < W_HOLDERS; i++)
		world_apply(w, EVENT(E_REGISTER, i));
	for (int i = 0; i < 1000 && (w->n_msgs || w->n_appends); i++)
		world_apply(w, w->n_appends ? EVENT(E_META, 0) : EVENT(E_DELIVER, 0));
	return w;
}

/* ---- events ---- */

/* Does the master believe in the holder as it is? */
static bool adopted(const struct world *w, unsigned i)
{
	struct mind_holder h;
	if (!mind_holder(w->mind, index_of(w, i), &h))
		return false;
	struct mind_under u = under_of(&w->holders[i]);
	return !h.away && h.under.term == u.term && h.under.adoption == u.adoption &&
	       h.under.pool_epoch == u.pool_epoch;
}

static bool in_flight(const struct world *w, unsigned h)
{
	for (uint32_t i = 0; i < w->n_msgs; i++) {
		const struct w_msg *m = &w->msgs[i];
		bool adopts = (m->kind == M_CMD || m->kind == M_CMD_REP) &&
			      (m->op == MIND_ADOPT || m->op == MIND_INVENTORY);
		if (m->holder == h && (m->kind == M_REGISTER || adopts))
			return true;
	}
	return false;
}

static void can_fenced(void *arg, uint64_t version, const struct extent *ext, size_t n)
{
	const struct w_holder *h = ((void **)arg)[0];
	bool *can = ((void **)arg)[1];
	(void)ext;
	(void)n;
	bool named = h->own->hazard == version;
	for (unsigned c = 0; c < W_CLIENTS; c++)
		named |= !h->gone_session[c] && h->lanes[c]->hazard == version;
	*can |= !named;
}

static bool sweeps(const struct w_holder *h)
{
	bool can = false;
	void *arg[2] = { (void *)(uintptr_t)h, &can };
	hold_writing(h->hold, 0, can_fenced, arg);
	return can;
}

/* Its client is stopped: it lies in the socket. */
bool msg_waits(const struct world *w, const struct w_msg *m)
{
	bool client = m->kind == M_PUT_GRANT || m->kind == M_REMOVE_REP ||
		      m->kind == M_QUERY_REP || m->kind == M_COMMIT_REP;
	return client && w->clients[m->client].stopped && !w->clients[m->client].dead;
}

static size_t calm_events(const struct world *w, uint16_t *out)
{
	size_t n = 0;
	for (uint32_t i = 0; i < w->n_msgs; i++) {
		if (msg_waits(w, &w->msgs[i]))
			continue;
		/* equal messages: one is enough */
		bool again = false;
		for (uint32_t k = 0; k < i && !w->msgs[i].inv; k++)
			again |= memcmp(&w->msgs[i], &w->msgs[k], sizeof(w->msgs[i])) == 0;
		if (!again)
			out[n++] = EVENT(E_DELIVER, i);
	}
	if (w->mind && w->n_appends)
		out[n++] = EVENT(E_META, 0);
	for (unsigned i = 0; i < W_HOLDERS; i++) {
		if (w->holders[i].up && w->mind && !adopted(w, i) && !in_flight(w, i))
			out[n++] = EVENT(E_REGISTER, i);
		if (w->holders[i].up && sweeps(&w->holders[i]))
			out[n++] = EVENT(E_SWEEP, i);
		if (w->holders[i].up && w->holders[i].pull.on)
			out[n++] = EVENT(E_PULL, i);
		if (!w->holders[i].up)
			out[n++] = EVENT(E_HOLDER_STARTS, i);
	}
	if (!w->mind)
		out[n++] = EVENT(E_MASTER_STARTS, 0);
	return n + client_events(w, out + n);
}

static size_t net_faults(const struct world *w, uint16_t *out)
{
	size_t n = 0;
	for (uint32_t i = 0; i < w->n_msgs; i++) {
		if (w->left.loss && w->msgs[i].kind != M_REPORT) /* said again until answered */
			out[n++] = EVENT(E_DROP, i);
		if (w->left.dups && !w->msgs[i].inv)
			out[n++] = EVENT(E_DUP, i);
	}
	return n;
}

static size_t life_faults(const struct world *w, uint16_t *out)
{
	size_t n = 0;
	if (w->mind && w->left.master_deaths)
		for (unsigned i = 0; i <= w->n_appends; i++)
			out[n++] = EVENT(E_MASTER_DIES, i);
	for (unsigned i = 0; i < W_HOLDERS; i++) {
		if (w->holders[i].up && w->left.holder_deaths)
			out[n++] = EVENT(E_HOLDER_DIES, i);
		if (w->mind && w->left.aways)
			out[n++] = EVENT(E_AWAY, i);
		if (w->mind && w->left.resends)
			out[n++] = EVENT(E_RESEND, i);
	}
	for (unsigned k = 0; w->mind && w->left.evicts && k < w->cfg->keys; k++)
		out[n++] = EVENT(E_EVICT, k);
	for (unsigned i = 0; w->mind && i < w->cfg->keys * W_HOLDERS; i++) {
		if (w->left.copies)
			out[n++] = EVENT(E_COPY, i);
		if (w->left.drops)
			out[n++] = EVENT(E_GIVE, i);
	}
	for (unsigned i = 0; w->mind && w->left.fences && i < w->n_versions; i++)
		if (!w->versions[i].acked)
			out[n++] = EVENT(E_FENCE, i);
	return n;
}

size_t world_events(const struct world *w, uint16_t *out)
{
	size_t n = calm_events(w, out);
	n += net_faults(w, out + n);
	n += life_faults(w, out + n);
	assert(n <= W_EVENTS_MAX);
	return n;
}

bool event_is_choice(uint16_t e)
{
	return EVENT_KIND(e) >= E_PUT && EVENT_KIND(e) != E_HOLDER_STARTS &&
	       EVENT_KIND(e) != E_MASTER_STARTS;
}

static void holder_register(struct world *w, unsigned i)
{
	struct w_msg *m = world_send(w, M_REGISTER);
	m->holder = (uint8_t)i;
	m->run = w->holders[i].run;
	m->epoch = hold_under(w->holders[i].hold, 0).pool_epoch;
}

static void evict(struct world *w, unsigned k)
{
	char key[4];
	key_name(k, key);
	w->left.evicts--;
	if (mind_evict(w->mind, tenant, BYTES_STR(key)) != ERR_NONE)
		return;
	for (uint32_t i = 0; i < w->n_versions; i++)
		w->versions[i].began_end |= w->versions[i].key == k;
}

static void copy(struct world *w, unsigned arg)
{
	char key[4];
	key_name(arg / W_HOLDERS, key);
	w->left.copies--;
	(void)!mind_copy_to(w->mind, tenant, BYTES_STR(key), index_of(w, arg % W_HOLDERS));
}

/* As the end of a move does. */
static void give(struct world *w, unsigned arg)
{
	char key[4];
	key_name(arg / W_HOLDERS, key);
	w->left.drops--;
	if (mind_copy_drop(w->mind, tenant, BYTES_STR(key), index_of(w, arg % W_HOLDERS)) !=
	    ERR_NONE)
		return;
	for (uint32_t i = 0; i < w->n_versions; i++)
		w->versions[i].moved |= w->versions[i].key == arg / W_HOLDERS;
}

static void away(struct world *w, unsigned i)
{
	w->left.aways--;
	w->away_ever[i] = true;
	mind_away(w->mind, holder_id(i));
}

static void duplicate(struct world *w, unsigned i)
{
	w->left.dups--;
	struct w_msg m = w->msgs[i];
	enum w_msg_kind kind = m.kind;
	*world_send(w, kind) = m;
}

static void resend(struct world *w, unsigned i)
{
	w->left.resends--;
	if (index_of(w, i) != UINT32_MAX)
		mind_resend(w->mind, index_of(w, i));
}

void world_apply(struct world *w, uint16_t event)
{
	unsigned kind = EVENT_KIND(event), arg = EVENT_ARG(event);
	struct w_msg m;
	world_of = w;
	master_clock(w);
	switch (kind) {
	case E_DELIVER:
		m = msg_take(w, arg);
		deliver(w, &m);
		break;
	case E_META:
		meta_done(w);
		break;
	case E_REGISTER:
		holder_register(w, arg);
		break;
	case E_SWEEP:
		hold_sweep(w->holders[arg].hold);
		break;
	case E_DROP:
		w->left.loss--;
		m = msg_take(w, arg);
		msg_free(&m);
		break;
	case E_DUP:
		duplicate(w, arg);
		break;
	case E_EVICT:
		evict(w, arg);
		break;
	case E_FENCE:
		w->left.fences--;
		mind_discard(w->mind, w->versions[arg].version);
		break;
	case E_MASTER_DIES:
		master_dies(w, arg);
		break;
	case E_MASTER_STARTS:
		master_start(w);
		break;
	case E_HOLDER_DIES:
		w->left.holder_deaths--;
		holder_dies(w, arg);
		break;
	case E_HOLDER_STARTS:
		holder_start(w, arg);
		break;
	case E_AWAY:
		away(w, arg);
		break;
	case E_RESEND:
		resend(w, arg);
		break;
	case E_PULL:
		copying_step(w, arg);
		break;
	case E_COPY:
		copy(w, arg);
		break;
	case E_GIVE:
		give(w, arg);
		break;
	default:
		client_apply(w, kind, arg);
	}
	master_turns(w);
}
