/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the shell share: svc.c (life), svc_conf.c (settings, folders), svc_calls.c (the
 * methods all services answer), svc_metrics.c, svc_main.c.
 */
#pragma once

#include "svc/http.h"
#include "svc/svc.h"

/* ---- svc_conf.c ---- */

/* Reads settings into s->conf; s->settings is owned by s even on an error. */
enum err svc_conf_load(struct svc *s, const struct svc_env *env, struct why *why) MUST_CHECK;
/* One log line a notice of foreign names. */
void svc_conf_log(const struct svc *s);
/* Settings that name what to use and cannot be used: reasons of /readyz (C2). */
void svc_conf_reasons(const struct svc *s, struct svc_reasons *r);
/* data_dir, run_dir, secret_file from the settings or the defaults; makes nothing. */
enum err svc_dirs_resolve(struct svc *s, bool with_home, struct why *why) MUST_CHECK;
/* Makes the folders, takes run/NAME.pid. */
enum err svc_dirs_take(struct svc *s, struct why *why) MUST_CHECK;
/* Removes run/NAME.json, gives the lock back. */
void svc_dirs_leave(struct svc *s);
/* Writes run/NAME.json (answers.md). */
enum err svc_dirs_tell(struct svc *s, struct why *why) MUST_CHECK;
/* s->id: the name; for a holder with 16 digits of host id and data folder behind it. */
void svc_id_make(struct svc *s, const char *where);
/* The secret file's keys, unless env gave some. */
enum err svc_keys_load(struct svc *s, const struct svc_env *env, struct why *why) MUST_CHECK;

/* ---- svc_calls.c ---- */

extern const struct rpc_method svc_calls[];
extern const size_t svc_n_calls;

/* ---- svc_metrics.c ---- */

void svc_metrics_late(struct svc *s, uint64_t late_ns);
/* arg: a struct svc; as rpc_server_opts.took. */
void svc_metrics_took(void *arg, uint64_t ns);
uint64_t svc_rss_bytes(void);
