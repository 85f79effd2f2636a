/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings as rows (C2). A row is one line of a conf.def; rows make the struct a service reads,
 * the parser of flags, environment and file, `pomelo config` and docs/configuration.md.
 *
 *   #define MASTER_CONF(F) \
 *           F(ms,   beat_ms, ".beat_ms", "500", "50", "60000", 0, "time between two beats") \
 *           F(enum, engine,  ".engine",  "sp",  "sp nng", "",  0, "rpc engine")
 *
 * F(type, field, name, default, lo, hi, flags, doc)
 *   field    member of the generated struct
 *   name     ".beat_ms" means SERVICE.beat_ms; "http.bind" and "host_id" are absolute
 *   default  text as a user would write it; "" is the zero of the type (an empty text, no list)
 *   lo, hi   both inclusive, in the syntax of the type, "" for none
 *
 *   type     C type               value                     lo, hi bound
 *   bool     bool                 true false on off yes no 1 0
 *   u32 u64  uint32_t uint64_t    decimal                   the value
 *   ms       uint64_t             decimal milliseconds      the value
 *   size     uint64_t, bytes      4096, 4KiB, 1GiB          the value
 *   ratio    double               0.25                      the value
 *   str      const char *         any text                  its length in bytes
 *   path     const char *         an absolute path          its length in bytes
 *   list     struct conf_list     a,b,c                     how many
 *   addrs    struct conf_list     tcp://h:1,ipc:///p        how many
 *   enum     int                  one of the words          lo holds them, "sp nng"; value = place
 *
 * Names: environment POMELO_ + upper case, dot -> _ (POMELO_MASTER_BEAT_MS); flags
 * `--set master.beat_ms=100`, and for the service's own process `--beat-ms 100` or `--beat-ms=100`
 * (own section left out, dot and _ -> -; a bool stands alone or takes =VALUE; a path given by a
 * flag may be relative to the working folder); file `master.beat_ms = 100`, one
 * a line, # begins a comment at a line's start or after white space, "..." keeps # and blanks.
 *
 * I1: flag > environment > file > foreign > default, whatever the order of the calls.
 * I2: ours are strict: unknown, malformed, out of range, twice in a file = ERR_INVALID_PARAMS and
 *     one line naming setting, value, range, remedy and origin. Names of another service's section
 *     (CONF_SECTIONS) and POMELO_TEST_* are left to their owners.
 * I3: foreign names (struct conf_foreign) never stop a start: a bad value is a notice and counts as
 *     unset, or is clamped. If it names what to use (CONF_NAMES_USE) the notice is a CONF_PROBLEM:
 *     that part of the service fails with ERR_INVALID_PARAMS and /readyz says so.
 * I4: a secret's value is in no text this file makes.
 * I5: a setting whose name has no section of a service (beat_ms, http.bind) may also be given for
 *     this service alone: master.beat_ms, or a flag to its own process. That is a second setting
 *     with I1's order of its own; where it is given, from wherever, it wins over the shared one.
 *
 * Thread: built before the loop starts; read-only after.
 */
#pragma once

#include "base/buf.h"
#include "base/err.h"

/* Sections of names. A name in a section that a schema has no row of belongs to another service. */
/* clang-format off */
#define CONF_SECTIONS(F) \
	F(master) F(agent) F(owner) F(planner) F(pg) F(client) F(up) \
	F(http) F(log) F(shard) F(store) F(s3) F(oss) F(nvme) F(weights) F(groups) F(ep)
/* clang-format on */

enum conf_type {
	CONF_bool,
	CONF_u32,
	CONF_u64,
	CONF_ms,
	CONF_size,
	CONF_ratio,
	CONF_str,
	CONF_path,
	CONF_list,
	CONF_addrs,
	CONF_enum,
};

struct conf_list {
	const char *const *v;
	size_t n;
};

typedef bool conf_c_bool;
typedef uint32_t conf_c_u32;
typedef uint64_t conf_c_u64;
typedef uint64_t conf_c_ms;
typedef uint64_t conf_c_size;
typedef double conf_c_ratio;
typedef const char *conf_c_str;
typedef const char *conf_c_path;
typedef struct conf_list conf_c_list;
typedef struct conf_list conf_c_addrs;
typedef int conf_c_enum;

enum conf_flag {
	CONF_SECRET = 1,    /* never shown (I4) */
	CONF_NAMES_USE = 2, /* a path, device, endpoint, bucket, transport (I3) */
};

struct conf_row {
	enum conf_type type;
	size_t offset; /* in the struct of its part */
	const char *name, *def, *lo, *hi;
	unsigned flags;
	const char *doc;
};

/* struct master_conf { struct svc_conf svc; MASTER_CONF(CONF_FIELD) }; */
#define CONF_FIELD(type, field, name, def, lo, hi, flags, doc) conf_c_##type field;
/* #define CONF_T struct master_conf
 * static const struct conf_row rows[] = { MASTER_CONF(CONF_ROW) }; */
#define CONF_ROW(type, field, name, def, lo, hi, flags, doc) \
	{ CONF_##type, offsetof(CONF_T, field), name, def, lo, hi, flags, doc },

/* Leniency of a foreign name. */
enum conf_lenient {
	CONF_CLAMP = 1, /* a number out of range is moved to the nearest bound, with a notice */
};

/*
 * A name of somebody else's that fills a setting which ours leave unset. Several may fill one
 * setting: the first in the table that is present wins, even when it is empty (= the default).
 * Values: bools in any case; numbers decimal (a `mul` allows a fraction); the rest as ours.
 */
struct conf_foreign {
	const char *name;    /* "MOONCAKE_..." in the environment, or a flag "--rpc_port" */
	const char *setting; /* as in a row's name; "" when nothing replaces it: see note */
	uint32_t mul;	     /* units: 1000 when theirs is seconds and ours ms; 0 is 1 */
	const char *lo, *hi; /* bounds, in our unit; NULL: the row's */
	const char *map;     /* "theirs=ours other=word" before parsing; NULL */
	const char *wrap;    /* text with one %s that becomes the value: "tcp://127.0.0.1:%s" */
	unsigned flags;	     /* enum conf_lenient */
	const char *note;    /* said when it is present: what replaces it; NULL */
};

/* Rows whose offsets count from base bytes into the service's struct. */
struct conf_part {
	const struct conf_row *rows;
	size_t n, base;
	const struct conf_foreign *foreign;
	size_t n_foreign;
};

struct conf;

struct conf_schema {
	const char *service; /* section of the names that start with a dot: "master" */
	const struct conf_part *parts;
	size_t n_parts;
	/* Optional: rules over several settings, after all is set; fails through conf_fail(). */
	enum err (*check)(struct conf *c, const void *at, struct why *w);
	const char *
		section; /* of I5; NULL: service. Not in CONF_SECTIONS: there are no such names */
};

/* `at` is the service's struct, caller's memory; its texts and lists live until conf_free. Every
 * setting holds its default at once. owned, conf_free(). ERR_NO_MEMORY. */
enum err conf_new(const struct conf_schema *s, void *at, struct conf **out) MUST_CHECK;
void conf_free(struct conf *c);

/* Command line of a daemon, without argv[0]. Anything that is no known flag is refused. */
enum err conf_flags(struct conf *c, int argc, char *const *argv, struct why *w) MUST_CHECK;
/* One `k=v` of --set. */
enum err conf_set(struct conf *c, const char *assignment, struct why *w) MUST_CHECK;
/* "K=V" texts, NULL at the end. */
enum err conf_env(struct conf *c, char *const *envp, struct why *w) MUST_CHECK;
/* A file of at most 1 MiB. One that is not there is fine unless must_exist (ERR_NOT_FOUND). */
enum err conf_file(struct conf *c, const char *path, bool must_exist, struct why *w) MUST_CHECK;
/* The same from memory; `name` stands for the file in texts. For tests and fuzzing. */
enum err conf_parse(struct conf *c, struct bytes text, const char *name, struct why *w)
	MUST_CHECK;
/* Once, after all sources: foreign names take their places, then the schema's check. */
enum err conf_end(struct conf *c, struct why *w) MUST_CHECK;

/* For a schema's check: "NAME = VALUE (ORIGIN): ...", ERR_INVALID_PARAMS. name as in the row. */
enum err conf_fail(struct conf *c, struct why *w, const char *name, const char *fmt, ...)
	PRINTF_LIKE(4, 5);

enum conf_origin { CONF_DEFAULT, CONF_FOREIGN, CONF_FILE, CONF_ENV, CONF_FLAG };

/* One setting as `pomelo config` shows it; borrowed until conf_free or the next conf_show. */
struct conf_shown {
	const char *name;   /* "master.beat_ms": the one that the value was given by (I5) */
	const char *own;    /* of a shared setting: its name for this service alone; else "" */
	const char *value;  /* canonical text; "(set, not shown)" or "" for a secret */
	const char *origin; /* "default", "pomelo.conf:12", "env POMELO_X", "flag --set" */
	const char *range;  /* "50..60000", "sp nng", "" */
	const char *doc;
	enum conf_origin kind;
	bool secret;
};

size_t conf_count(const struct conf *c);
void conf_show(struct conf *c, size_t i, struct conf_shown *out);
/* Where a setting comes from; name as in the row or in full, not I5's. Asserts that there is one. */
enum conf_origin conf_origin(const struct conf *c, const char *name);
/* All of them as an aligned table: name, value, origin, doc. */
void conf_print(struct conf *c, struct buf *out);

enum conf_notice_kind { CONF_NOTE, CONF_WARN, CONF_PROBLEM };

struct conf_notice {
	enum conf_notice_kind kind;
	const char *setting; /* full name; "" for none */
	const char *text;    /* one line, no secrets */
};

/* What foreign names led to, in table order; at most one a foreign row. */
size_t conf_notices(const struct conf *c, const struct conf_notice **out);
/* Names of ours that were left to the owner of their section (I2), as "owner.x (flag --set)", at most
 * 64: whoever knows all schemas finds those that no one owns. */
size_t conf_left(const struct conf *c, const char *const **out);
/* MOONCAKE_* names that were set and that no row knows, at most 64. */
size_t conf_unlisted(const struct conf *c, const char *const **out);

/* ---- syntax, also for command lines ---- */

/* "4096" "4KiB" ... "1PiB"; false when it is none or does not fit. */
bool conf_parse_size(const char *text, uint64_t *out);
/* The shortest exact text: 1073741824 -> "1GiB". out has room for 24. */
void conf_format_size(uint64_t bytes, char out[24]);
/* The one nearest to `name` (at most 1/3 of it differs), or NULL. */
const char *conf_nearest(const char *name, const char *const *names, size_t n);

/* ---- the page ---- */

/* A mistake in the rows themselves (a default out of range, a name twice, an unknown section, a
 * foreign row that fills nothing) as ERR_INTERNAL: each service's test calls it. */
enum err conf_schema_check(const struct conf_schema *s, struct why *w) MUST_CHECK;
/* docs/configuration.md for these schemas; a row shared by several is listed once. */
void conf_page(const struct conf_schema *const *schemas, size_t n, struct buf *out);
