/* SPDX-License-Identifier: Apache-2.0 */
/* Events in words, for traces. */
#include "tests/model/world.h"

#include <stdio.h>
#include <string.h>

static const char *const msg_names[] = {
	"none",	     "PUT_START",   "PUT_GRANT",  "REMOVE",   "REMOVE_REP", "QUERY",
	"QUERY_REP", "COMMIT",	    "COMMIT_REP", "REGISTER", "PUBLISH",    "PUBLISH_REP",
	"CONFIRM",   "CONFIRM_REP", "REPORT",	  "CMD",      "CMD_REP"
};
static const char *const op_names[] = { "ADOPT", "INVENTORY", "RETIRE", "FREE",
					"MARK",	 "FENCE",     "COPY" };
static const char *const state_names[] = { "idle",	  "asked for space", "granted",
					   "hazard set",  "half written",    "written",
					   "COMMIT sent", "QUERY sent",	     "reads",
					   "half read",	  "REMOVE sent" };
static const char *const event_names[] = {
	[E_META] = "append durable",
	[E_REGISTER] = "registers: holder",
	[E_SWEEP] = "sweeps: holder",
	[E_PUT] = "put",
	[E_GET] = "get",
	[E_REMOVE] = "remove",
	[E_EVICT] = "evict: key",
	[E_FENCE] = "discard: version no.",
	[E_MASTER_DIES] = "master dies, appends durable:",
	[E_HOLDER_DIES] = "dies: holder",
	[E_HOLDER_STARTS] = "starts: holder",
	[E_MASTER_STARTS] = "master starts",
	[E_AWAY] = "away: holder",
	[E_KILL] = "killed: client",
	[E_STOP] = "stopped: client",
	[E_CONT] = "woken: client",
	[E_GIVE_UP] = "gives up: client",
	[E_AGAIN] = "COMMIT again: client",
	[E_RESEND] = "resend to holder",
	[E_PULL] = "copies on: holder",
	[E_COPY] = "another copy: key * 2 + holder",
	[E_GIVE] = "its copy is given up: key * 2 + holder",
};

static void tell_msg(const struct w_msg *m, const char *verb, char *out, size_t n)
{
	bool cmd = m->kind == M_CMD || m->kind == M_CMD_REP;
	snprintf(
		out, n,
		"%s %s%s%s c%u h%u k%u v%u.%u slot %u gen %llu err %s term %u epoch %llu fence %u",
		verb, msg_names[m->kind], cmd ? " " : "", cmd ? op_names[m->op] : "", m->client,
		m->holder, m->key, (unsigned)version_term(m->version),
		(unsigned)(m->version & 0xffffff), m->slot, (unsigned long long)m->generation,
		err_name(m->err), (unsigned)(cmd ? m->under.term : m->term),
		(unsigned long long)m->under.pool_epoch, m->fence);
}

void world_tell(const struct world *w, uint16_t e, char *out, size_t n)
{
	unsigned kind = EVENT_KIND(e), arg = EVENT_ARG(e);
	if (kind == E_DELIVER || kind == E_DROP || kind == E_DUP)
		tell_msg(&w->msgs[arg],
			 kind == E_DELIVER ? "deliver"
			 : kind == E_DROP  ? "lose"
					   : "double",
			 out, n);
	else if (kind == E_STEP)
		snprintf(out, n, "client %u goes on: %s", arg,
			 state_names[w->clients[arg].state]);
	else if (kind == E_PUT || kind == E_GET || kind == E_REMOVE)
		snprintf(out, n, "client %u: %s k%u", arg / 2, event_names[kind], arg % 2);
	else
		snprintf(out, n, "%s %u", event_names[kind], arg);
}

static void fact(void *arg, const char *name, const char *value)
{
	printf("      k%u %s: %s\n", *(unsigned *)arg, name, value);
}

static void show_holder(struct world *w, unsigned i)
{
	struct mind_holder m;
	if (!w->holders[i].up || !mind_holder(w->mind, i, &m))
		return;
	unsigned at = (unsigned)(m.id[1] - '0');
	struct hold_under u = hold_under(w->holders[at].hold, 0);
	printf("      %s: %s%s, term %llu.%llu epoch %llu; its own %llu.%llu epoch %llu\n",
	       m.id, m.away ? "away" : "in", m.merged ? ", merged" : "",
	       (unsigned long long)m.under.term, (unsigned long long)m.under.adoption,
	       (unsigned long long)m.under.pool_epoch, (unsigned long long)u.term,
	       (unsigned long long)u.adoption, (unsigned long long)u.pool_epoch);
}

void world_show(struct world *w)
{
	for (uint32_t i = 0; i < w->n_versions; i++) {
		const struct w_version *v = &w->versions[i];
		printf("      v%u.%u of k%u at h%u:%s%s%s\n",
		       (unsigned)version_term(v->version), (unsigned)(v->version & 0xffffff),
		       v->key, v->holder, v->acked ? " acknowledged" : "",
		       v->committed ? " committed" : "", v->began_end ? " its end began" : "");
	}
	for (unsigned i = 0; w->mind && i < W_HOLDERS; i++)
		show_holder(w, i);
	for (unsigned k = 0; w->mind && k < w->cfg->keys; k++) {
		const char key[3] = { 'k', (char)('0' + k), 0 };
		mind_explain(w->mind, BYTES("t", 1), BYTES_STR(key), fact, &k);
	}
}
