/* SPDX-License-Identifier: Apache-2.0 */
/* The handle: opening, its thread and loop, the door, closing. */
#include "sdk.h"

#include "loop/thread.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define CLIENT_STACK_BYTES (512 << 10)

static const char *const service_names[SDK_ENDS] = { "master",	"agent", "owner",
						     "planner", "pg",	 "master" };

int sdk_usable(const struct pml *p, struct pml_error *err)
{
	if (!p)
		return sdk_error(err, ERR_INVALID_PARAMS, 0, NULL, "start",
				 "the handle is NULL");
	if (!guard_ok(p->guard))
		return sdk_error(err, ERR_FORKED, 0, NULL, "start", "%s", err_text(ERR_FORKED));
	return PML_ERR_NONE;
}

int sdk_enter(struct guard *g, struct pml **out, struct pml_error *err)
{
	if (!guard_ok(g))
		return sdk_error(err, ERR_FORKED, 0, NULL, "start", "%s", err_text(ERR_FORKED));
	*out = guard_enter(g);
	if (!*out)
		return sdk_error(err, ERR_CLOSED, 0, NULL, "start", "the handle was closed");
	return PML_ERR_NONE;
}

int sdk_service(const char *name)
{
	for (int i = 0; name && i < SDK_SERVICES; i++)
		if (strcmp(service_names[i], name) == 0)
			return i;
	return -1;
}

/* ---- the loop's side ---- */

enum err sdk_end(struct pml *p, int service, struct rpc_client **out, struct why *why)
{
	struct service_end *end = &p->ends[service];
	char *addrs[SDK_ADDRS_MAX] = { 0 };
	enum err e = ERR_NONE;
	if (!end->rpc) {
		size_t n = endpoints_of(p, end->name, addrs);
		struct rpc_client_opts o = {
			.addrs = (const char *const *)addrs,
			.n_addrs = n,
			.peer_name = end->name,
			.as = end->as,
			.expect_name = end->name,
			.tenant = p->tenant,
			.keys = p->keys,
			.log = &p->log,
			.instance = p->instance,
			.queue_max = p->calls_max,
		};
		e = n ? rpc_client_new(&p->loop, &o, &end->rpc, why)
		      : why_set(why, ERR_UNREACHABLE, "no address of %s is known", end->name);
		for (size_t i = 0; i < n; i++)
			free(addrs[i]);
	}
	if (e == ERR_NONE)
		*out = end->rpc;
	return e;
}

void sdk_knock(struct pml *p)
{
	if (p->door_posted || p->door_shut)
		return;
	p->door_posted = true;
	loop_post(&p->loop, &p->door_post);
}

void sdk_begun(struct pml *p, const struct pml_op *op)
{
	if (p->n_running++ == 0)
		p->linger = !op->cq && loop_recent_ns(&p->loop) - p->idle_ns < op->spin_ns;
	p->poll = 1;
}

void sdk_ended(struct pml *p)
{
	if (--p->n_running > 0)
		return;
	p->idle_ns = loop_recent_ns(&p->loop);
	p->poll = p->linger;
}

static void end_closed(void *arg)
{
	struct pml *p = arg;
	if (--p->n_closing == 0)
		loop_stop(&p->loop);
}

/* Flows may wait for nothing but a timer: each is told. */
static void shut_flows(struct pml *p)
{
	for (;;) {
		struct pml_op *op = NULL;
		pthread_mutex_lock(&p->lock);
		list_for_each (it, &p->live) {
			struct pml_op *o = list_entry(it, struct pml_op, live_node);
			if (o->flow && o->running && !o->told) {
				op = o;
				break;
			}
		}
		pthread_mutex_unlock(&p->lock);
		if (!op)
			return;
		op->told = true;
		op->flow->stop(op, ERR_CLOSED, true);
	}
}

static void shut_ends(void *arg)
{
	struct pml *p = arg;
	p->n_closing = 1;
	for (size_t i = 0; i < SDK_ENDS; i++) {
		if (!p->ends[i].rpc)
			continue;
		p->n_closing++;
		rpc_client_close(p->ends[i].rpc, end_closed, p);
	}
	end_closed(p);
}

/* Everything under way ends; then the loop stops. */
static void shut(struct pml *p)
{
	shut_flows(p);
	if (p->stc)
		stc_close(p->stc, shut_ends, p);
	else
		shut_ends(p);
}

static struct pml_op *take(struct pml *p)
{
	pthread_mutex_lock(&p->lock);
	struct list *node = list_pop_front(&p->door);
	pthread_mutex_unlock(&p->lock);
	return node ? list_entry(node, struct pml_op, door_node) : NULL;
}

static void on_door(struct post *post)
{
	struct pml *p = container_of(post, struct pml, door_post);
	struct pml_op *op;
	pthread_mutex_lock(&p->lock);
	p->door_posted = false;
	bool closing = p->closing;
	p->door_shut = closing; /* what comes later is a cancel of what ends anyway */
	pthread_mutex_unlock(&p->lock);
	if (!closing)
		loop_expect(&p->loop); /* the next knock */
	while ((op = take(p)) != NULL) {
		if (closing && !op->running)
			op_end_unrun(op, ERR_CLOSED, "the handle was closed");
		else
			op_step(op);
	}
	if (closing)
		shut(p);
}

static void *thread_main(void *arg)
{
	struct pml *p = arg;
	loop_run(&p->loop);
	loop_close(&p->loop);
	return NULL;
}

/* ---- opening ---- */

static void drop_line(struct log_capture *c, const char *line, size_t n)
{
}

/* Its name, and no signal of the application's, not even SIGPIPE. */
static enum err start_thread(struct pml *p)
{
	pthread_attr_t at;
	if (pthread_attr_init(&at) != 0)
		return ERR_NO_MEMORY;
	pthread_attr_setstacksize(&at, CLIENT_STACK_BYTES);
	int sys = thread_start(&p->thread, &at, "pomelo", thread_main, p);
	pthread_attr_destroy(&at);
	return sys == 0 ? ERR_NONE : err_from_errno(sys);
}

static enum err take_tenant(struct pml *p, const char *tenant, struct why *why)
{
	if (!tenant)
		tenant = "default";
	if (!auth_name_ok(tenant))
		return why_set(why, ERR_INVALID_PARAMS,
			       "tenant %.80s: 1 to 64 of the characters A-Z a-z 0-9 . _ -",
			       tenant);
	snprintf(p->tenant, sizeof(p->tenant), "%s", tenant);
	return ERR_NONE;
}

/* All but the loop and its thread. */
static enum err prepare(struct pml *p, const struct pml_open_opts *o, struct why *why)
{
	struct where_wish w = { .data = o->data,
				.run_dir = o->run_dir,
				.secret_file = o->secret_file,
				.env = (const char *(*)(const char *))getenv,
				.root = geteuid() == 0 };
	enum err e = where_find(&w, &p->where, why);
	if (e == ERR_NONE)
		e = take_tenant(p, o->tenant, why);
	if (e == ERR_NONE)
		e = sdk_conf_read(p, o, why);
	if (e == ERR_NONE)
		e = keyring_load(p->where.secret, &p->keys, why);
	if (e == ERR_NONE && !keyring_holds(p->keys, ROLE_CLIENT, p->tenant))
		e = why_set(
			why, ERR_FORBIDDEN,
			"%.160s holds no key of role client, tenant %s; get one with `pomelo secret "
			"derive client %s`",
			p->where.secret, p->tenant, p->tenant);
	if (e == ERR_NONE && getrandom(p->instance, sizeof(p->instance), 0) != 16)
		e = why_set(why, ERR_IO, "the kernel gives no random bytes");
	where_host(p->set.host_id, p->host);
	for (size_t i = 0; i < SDK_ENDS; i++)
		p->ends[i] = (struct service_end){
			.name = service_names[i],
			.as = i == SDK_ADMIN ? ROLE_ADMIN : ROLE_CLIENT,
		};
	return e;
}

static void destroy(struct pml *p)
{
	keyring_free(p->keys);
	conf_free(p->conf);
	free(p->masters_text);
	guard_unref(p->guard);
	pthread_mutex_destroy(&p->lock);
	pthread_rwlock_destroy(&p->buf_lock);
	free(p->buffers);
	free(p);
}

static enum err open_handle(struct pml *p, const struct pml_open_opts *o, struct why *why)
{
	pthread_mutex_init(&p->lock, NULL);
	pthread_rwlock_init(&p->buf_lock, NULL);
	list_init(&p->door);
	list_init(&p->live);
	p->silence.fn = drop_line;
	p->log = (struct log){ .svc = "client", .fd = -1 };
	log_set_capture(&p->log, &p->silence);
	enum err e = guard_new(&p->guard);
	if (e == ERR_NONE)
		e = prepare(p, o, why);
	if (e == ERR_NONE)
		e = loop_open(&p->loop);
	if (e != ERR_NONE)
		return e;
	loop_spin(&p->loop, p->set.spin_us, &p->poll);
	p->door_post.fn = on_door;
	loop_expect(&p->loop);
	e = start_thread(p);
	if (e == ERR_NONE)
		return ERR_NONE;
	inbox_unexpect(&p->loop.inbox);
	loop_close(&p->loop);
	return e;
}

int pml_open(const struct pml_open_opts *o, struct pml **out, struct pml_error *err)
{
	struct pml_open_opts opts;
	struct why why = { 0 };
	if (!out || !sdk_opts(&opts, sizeof(opts), o) || opts.reserved)
		return sdk_error(err, ERR_INVALID_PARAMS, 0, NULL, "open",
				 "pml_open_opts: size is not set; use PML_OPEN_OPTS_INIT");
	struct pml *p = calloc(1, sizeof(*p));
	if (!p)
		return sdk_error(err, ERR_NO_MEMORY, 0, NULL, "open", "no memory for a handle");
	enum err e = open_handle(p, &opts, &why);
	if (e == ERR_NONE) {
		guard_own(p->guard, p);
		*out = p;
		return PML_ERR_NONE;
	}
	destroy(p);
	return sdk_error(err, e, 0, NULL, "open", "%s", why.err ? why.text : err_text(e));
}

int pml_close(struct pml *p)
{
	if (!p)
		return PML_ERR_NONE;
	if (!guard_ok(p->guard))
		return PML_ERR_FORKED;
	guard_own(p->guard, NULL);
	pthread_mutex_lock(&p->lock);
	p->closing = true;
	sdk_knock(p);
	pthread_mutex_unlock(&p->lock);
	pthread_join(p->thread, NULL);
	assert(p->n_live == 0 && p->n_running == 0); /* I3 */
	destroy(p);
	return PML_ERR_NONE;
}
