/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the settings engine share: conf.c (the store), conf_value.c (syntax),
 * conf_source.c (flags, environment, file), conf_foreign.c, conf_page.c.
 */
#pragma once

#include "base/conf.h"

#define CONF_NAME_MAX	  80	    /* bytes of a setting's full name */
#define CONF_VALUE_MAX	  8192	    /* bytes of a value */
#define CONF_FILE_MAX	  (1 << 20) /* bytes of a file */
#define CONF_LIST_MAX	  1024	    /* parts of a list */
#define CONF_UNLISTED_MAX 64
#define CONF_LEFT_MAX	  64

/* A parsed value; text and list are owned. */
struct conf_value {
	union {
		bool b;
		uint64_t u;
		double d;
		int e;
		char *text;
		struct conf_list list; /* v and the texts are one allocation */
	};
};

/* Why a text is no value: problem is NULL when it is one. */
struct conf_bad {
	enum err err; /* ERR_INVALID_PARAMS, ERR_NO_MEMORY */
	const char *problem;
	bool range; /* well formed, but out of it; with `low` or above */
	bool low;
};

/* By which name a shared setting was given: I5 of conf.h. */
enum conf_rank {
	CONF_SHARED,   /* beat_ms; and every setting of a section */
	CONF_OWN_FLAG, /* --beat-ms, to this very process */
	CONF_OWN_NAME, /* master.beat_ms */
};

struct conf_item {
	const struct conf_row *row;
	void *at; /* its member of the service's struct */
	char name[CONF_NAME_MAX],
		own_name[CONF_NAME_MAX]; /* own: "" for a setting of a section */
	enum conf_origin kind;
	enum conf_rank rank;
	char *origin;		 /* owned; NULL is "default" */
	struct conf_value value; /* what `at` holds */
	unsigned line, own_line; /* of the file that is being read, by name; 0 */
};

struct conf_alias {
	const struct conf_foreign *f;
	struct conf_item *item; /* NULL: nothing replaces it */
	char *value;		/* owned; NULL: not present */
};

struct conf {
	const struct conf_schema *schema;
	void *at;
	bool ended;
	struct conf_item *items;
	size_t n;
	struct conf_alias *aliases;
	size_t n_aliases;
	struct conf_notice *notices; /* room for n_aliases; texts owned */
	size_t n_notices;
	const char *unlisted[CONF_UNLISTED_MAX]; /* owned */
	size_t n_unlisted;
	const char *left[CONF_LEFT_MAX]; /* owned */
	size_t n_left;
	char *shown_value, *shown_range; /* owned, of the last conf_show */
};

/* ---- conf.c ---- */

/* Full name of a row: ".x" -> "service.x". */
void conf_full_name(const char *service, const char *row_name, char out[CONF_NAME_MAX]);
/* Is it one of CONF_SECTIONS? */
bool conf_section_known(const char *section, size_t n);
/* By its name or, for a shared setting, by its own name here; rank tells. */
struct conf_item *conf_find(const struct conf *c, const char *full_name, enum conf_rank *rank);
/* The name that it was given by. */
const char *conf_name_of(const struct conf_item *it, enum conf_rank rank);
/* Takes v (on success and on failure). What is weaker than the present one is dropped (I1, I5). */
enum err conf_store(struct conf_item *it, struct conf_value v, enum conf_rank rank,
		    enum conf_origin kind, const char *origin) MUST_CHECK;
/* A strict value: parses and stores, or one line in w. */
enum err conf_assign(struct conf_item *it, const char *text, enum conf_rank rank,
		     enum conf_origin kind, const char *origin, struct why *w) MUST_CHECK;
/* Is a name that no row has another service's (I2)? name is full, with dots. */
bool conf_elsewhere(const struct conf *c, const char *full_name);
/* Remembers such a name. */
enum err conf_left_see(struct conf *c, const char *name, const char *origin) MUST_CHECK;
/* Environment and flag names of a setting. */
void conf_env_name(const char *full_name, char out[CONF_NAME_MAX + 8]);
void conf_flag_name(const struct conf *c, const char *full_name, char out[CONF_NAME_MAX + 8]);
/* A value for a text: cut, control characters replaced, "(hidden)" for a secret. */
void conf_quote(const struct conf_row *r, const char *text, char *out, size_t cap);

/* ---- conf_value.c ---- */

struct conf_bad conf_value_parse(const struct conf_row *r, const char *text,
				 struct conf_value *out);
/* The same with other bounds (NULL: the row's). */
struct conf_bad conf_value_parse_in(const struct conf_row *r, const char *lo, const char *hi,
				    const char *text, struct conf_value *out);
void conf_value_free(const struct conf_row *r, struct conf_value *v);
/* Writes v into the service's struct. */
void conf_value_put(const struct conf_row *r, const struct conf_value *v, void *at);
/* Canonical text. */
void conf_value_print(const struct conf_row *r, const struct conf_value *v, struct buf *out);
/* "50..60000 ms", "one of: sp nng", "1..64 bytes", "". */
void conf_range_print(const struct conf_row *r, struct buf *out);
const char *conf_type_text(enum conf_type t);
bool conf_parse_u64(const char *text, uint64_t *out);

/* ---- conf_foreign.c ---- */

/* The alias of a foreign name, or NULL. */
struct conf_alias *conf_alias_find(struct conf *c, const char *name);
/* Remembers a present foreign name; the first value stays. */
enum err conf_alias_see(struct conf_alias *a, const char *value) MUST_CHECK;
/* Remembers a name that no row knows. */
enum err conf_unlisted_see(struct conf *c, const char *name, size_t n) MUST_CHECK;
/* Fills what ours left unset; makes the notices. */
enum err conf_foreign_resolve(struct conf *c) MUST_CHECK;
