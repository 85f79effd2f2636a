/* SPDX-License-Identifier: Apache-2.0 */
/* The command table: a command is one row here and one function. */
#include "ctl.h"

/* clang-format off */
static const struct cli_flag up_flags[] = {
	{ "--pool", "SIZE", "memory for objects: 512MiB, 4GiB (a quarter of RAM)", NULL },
	{ "--disk", "SIZE", "most the local disk tier may take", "--no-disk" },
	{ "--no-disk", NULL, "memory only: nothing is kept over a restart of the machine", "--disk" },
	{ 0 },
};

static const struct cli_flag down_flags[] = {
	{ "--fast", NULL, "do not first write to disk what is only in memory", NULL },
	{ "--keep-memory", NULL, "leave the memory pool for the next `up`", NULL },
	{ 0 },
};

static const struct cli_flag supervise_flags[] = {
	{ "--lock-fd", "FD", "DATA/lock, held", NULL },
	{ "--ready-fd", "FD", "where to say that it listens", NULL },
	{ "--adopt-only", NULL, "start nothing", NULL },
	{ 0 },
};

static const struct cli_flag ep_flags[] = {
	{ "--transport", "NAME", "auto, host, ipc; by name it never falls back (auto)", NULL },
	{ "--ranks", "N", "threads of this process, 1 to 64", NULL },
	{ "--tokens", "N", "of each rank in a step", NULL },
	{ "--hidden", "N", "channels, a multiple of 128", NULL },
	{ "--top-k", "N", "experts of a token, 1 to 32", NULL },
	{ "--experts", "N", "dealt to the ranks in turn", NULL },
	{ "--steps", "N", "how many", NULL },
	{ "--device", "N", "GPU number (0)", NULL },
	{ 0 },
};

static const struct cli_flag weights_plan_flags[] = {
	{ "--participant", "ID", "only what this participant of TARGET needs", NULL },
	{ "--local", NULL, "the same, for a TARGET with one participant", NULL },
	{ "--remote", NULL, "let the cluster's planner make it", NULL },
	{ 0 },
};

static const struct cli_flag put_flags[] = {
	{ "--replace", NULL, "over an object that is there; it stays readable until then", NULL },
	{ "--replicas", "N", "copies wanted, 1 to 16 (1)", NULL },
	{ "--replicas-required", "N", "done only with so many; the others follow (1)", NULL },
	{ "--durable", NULL, "done only with a copy on disk", NULL },
	{ "--hard-pin", NULL, "its last copy is never evicted", NULL },
	{ "--soft-pin", "MS", "evicted last for so long, 1 to 86400000 (30 minutes: 1800000)", NULL },
	{ "--group", "NAME", "object group: its members are evicted together", NULL },
	{ "--group-size", "N", "readable only while the group has so many, 1 to 1048576", NULL },
	{ "--format", "TAG", "a get that names another tag misses it", NULL },
	{ 0 },
};

static const struct cli_flag get_flags[] = {
	{ "--verify", NULL, "compare what arrived with its checksum", NULL },
	{ 0 },
};

static const struct cli_flag ls_flags[] = {
	{ "--tier", "TIER", "memory or disk: only with a copy there", NULL },
	{ 0 },
};

static const struct cli_flag rm_flags[] = {
	{ "--force", NULL, "hard-pinned ones too", NULL },
	{ "--prefix", NULL, "each KEY stands for all that begin so", "--all" },
	{ "--all", NULL, "every object of the tenant", "--prefix" },
	{ 0 },
};

static const struct cli_flag replay_flags[] = {
	{ "--block", "SIZE", "bytes of a block, up to 256MiB (64KiB)", NULL },
	{ "--clients", "N", "requests under way at once, 1 to 256 (1)", NULL },
	{ "--time-scale", "X", "0: flat out; 1: as recorded; 0.1: ten times as fast (0)", NULL },
	{ "--limit", "N", "only the first N requests", NULL },
	{ "--prefix", "TEXT", "keys are TEXT/BLOCK/ID (trace)", NULL },
	{ 0 },
};

static const struct cli_flag top_flags[] = {
	{ "--once", NULL, "one table, over one interval; so it is without a terminal, too", NULL },
	{ "--interval", "TIME", "what rates are taken over: 100ms to 1h (2s; once: 1s)", NULL },
	{ 0 },
};

static const struct cli_flag drain_flags[] = {
	{ "--no-wait", NULL, "start it and say its id", NULL },
	{ 0 },
};

static const struct cli_flag bench_flags[] = {
	{ "--clients", "N", "threads with a handle each, 1 to 256 (1)", NULL },
	{ "--size", "SIZE", "bytes of an object, up to 1GiB (4KiB)", NULL },
	{ "--batch", "N", "objects of a call, 1 to 4096 (32)", NULL },
	{ "--flights", "N", "calls of a client under way at once, 1 to 64 (4)", NULL },
	{ "--seconds", "N", "how long each is measured, 1 to 3600 (3)", NULL },
	{ 0 },
};

const struct cmd cli_cmds[] = {
	{ .name = "up", .args = "", .fn = cmd_up, .flags = up_flags,
	  .summary = "start the five services on this box",
	  .help =
		"Starts master, agent, owner, planner and pg under a small supervisor that stays, and\n"
		"waits until all are ready. On a running cluster it says so. Services that run without a\n"
		"supervisor are adopted as they are.\n"
		"\n"
		"The first `up` on a data folder makes it (0700) and the cluster's secret. Settings come\n"
		"from --set, POMELO_* variables and DIR/pomelo.conf; see `pomelo config`.\n",
	  .examples =
		"pomelo up\n"
		"pomelo up --pool 4GiB --no-disk\n"
		"pomelo --data /tmp/second up --set master.beat_ms=250\n" },
	{ .name = "down", .args = "", .fn = cmd_down, .flags = down_flags,
	  .summary = "stop them; durable data stays",
	  .help =
		"Asks each service in turn to finish what it does and end (SIGTERM); one that is still\n"
		"there after up.grace_ms is killed, which is said. The memory pool is removed unless\n"
		"--keep-memory is given; what is on disk stays.\n",
	  .examples =
		"pomelo down\n"
		"pomelo down --keep-memory\n" },
	{ .name = "status", .args = "", .fn = cmd_status,
	  .summary = "what runs, since when, and is it ready",
	  .help =
		"One line a service, one a holder of objects. Exit code 0 when all are ready, 5 when not or when\n"
		"nothing runs.\n",
	  .examples =
		"pomelo status\n"
		"pomelo status --json\n" },
	{ .name = "top", .args = "", .fn = cmd_top, .flags = top_flags,
	  .summary = "what the services do now, again and again",
	  .help =
		"Requests, errors and times of each service, puts, look-ups, hits and evictions of the store,\n"
		"and what holders have. Rates are of the last interval; - is what was not measured: no\n"
		"look-up, so no share of hits; a service that was restarted meanwhile. Times are upper bounds\n"
		"of the histograms' buckets. Ctrl-C ends it. Exit code 5 when not all are ready.\n",
	  .examples =
		"pomelo top\n"
		"pomelo top --once --interval 10s\n"
		"pomelo top --json\n" },
	{ .name = "put", .args = "KEY FILE", .fn = cmd_put, .flags = put_flags, .args_min = 2, .args_max = 2,
	  .summary = "store a file's bytes under a key",
	  .help =
		"FILE may be - for standard input. A key has 1 to 1024 bytes; hex:6b31 writes any bytes. A key\n"
		"that has an object is refused unless --replace is given. While another writer puts the key it\n"
		"waits, until --deadline.\n",
	  .examples =
		"pomelo put prompts/7 cache.bin\n"
		"tar c dir | pomelo put backup -\n"
		"pomelo put prompts/7 cache.bin --replace --hard-pin\n" },
	{ .name = "get", .args = "KEY FILE", .fn = cmd_get, .flags = get_flags, .args_min = 2, .args_max = 2,
	  .summary = "write an object's bytes to a file",
	  .help =
		"FILE may be - for standard output. A file appears under its name when it is whole. Exit code\n"
		"3 when there is no such object.\n",
	  .examples =
		"pomelo get prompts/7 copy.bin\n"
		"pomelo get backup - | tar t\n" },
	{ .name = "ls", .args = "[PREFIX]", .fn = cmd_ls, .flags = ls_flags, .args_max = 1,
	  .summary = "the keys there are",
	  .help =
		"Size, version, where copies are (m memory, d disk), key; in no order that means anything. Keys\n"
		"that are not printable are shown as hex:... and may be given so.\n",
	  .examples =
		"pomelo ls\n"
		"pomelo ls prompts/ --tier memory\n" },
	{ .name = "stat", .args = "KEY...", .fn = cmd_stat, .args_min = 1, .args_max = 4096,
	  .summary = "what is known of objects",
	  .help =
		"Looking is no use: it neither keeps an object from eviction nor takes a lease. Exit code 3\n"
		"when the one KEY has no object, 4 when some of several have none.\n",
	  .examples =
		"pomelo stat prompts/7\n"
		"pomelo stat prompts/7 prompts/8 --json\n" },
	{ .name = "rm", .args = "[KEY...]", .fn = cmd_rm, .flags = rm_flags, .args_max = 4096,
	  .summary = "remove objects",
	  .help =
		"What is removed is gone for everybody when this returns, on holders that are away too. A key\n"
		"without an object is no error.\n",
	  .examples =
		"pomelo rm prompts/7\n"
		"pomelo rm --prefix prompts/ weights/old/\n"
		"pomelo rm --all --force\n" },
	{ .name = "explain", .args = "KEY", .fn = cmd_explain, .args_min = 1, .args_max = 1,
	  .summary = "all that the master knows of a key",
	  .help = "Hash, shard, version, replicas, leases, pins, tombstones, one line each.\n",
	  .examples = "pomelo explain prompts/7\n" },
	{ .name = "drain", .args = "NODE", .fn = cmd_drain, .flags = drain_flags, .args_min = 1, .args_max = 1,
	  .summary = "empty a holder: every object it has becomes readable elsewhere",
	  .help =
		"NODE is a holder of `pomelo status`. From now on no new object goes there; what it has is\n"
		"copied to others, checked, and retired there. Every key stays readable throughout. Its state\n"
		"is draining, then drained: it may be stopped and forgotten.\n"
		"\n"
		"Waits until it is over, however long that takes; with --deadline no longer than that. Ctrl-C\n"
		"leaves it running and says how to cancel it. It waits for room, too: nothing is evicted for\n"
		"it. A restart of the master ends it; begin again then: what was moved stays moved.\n",
	  .examples =
		"pomelo drain agent-0123456789abcdef\n"
		"pomelo drain agent-0123456789abcdef --no-wait --json\n" },
	{ .name = "tasks", .args = "[ID...]", .fn = cmd_tasks, .args_max = 4096,
	  .summary = "drains, copies and moves: how far they are",
	  .help =
		"Those of the tenant, or of all tenants where the cluster's own secret is; finished ones for a\n"
		"while. Exit code 1 (TASK_LOST) when an ID is not known, or not any more.\n",
	  .examples =
		"pomelo tasks\n"
		"pomelo tasks 0000010000000007 --json\n" },
	{ .name = "task cancel", .args = "ID...", .fn = cmd_task_cancel, .args_min = 1, .args_max = 64,
	  .summary = "end a task; what it has copied stays",
	  .help =
		"A drain is undone: its holder takes new objects again, also after it is drained. Exit code 4\n"
		"when some of several could not be cancelled.\n",
	  .examples = "pomelo task cancel 0000010000000007\n" },
	{ .name = "forget", .args = "HOLDER", .fn = cmd_forget, .args_min = 1, .args_max = 1,
	  .summary = "drop a holder that will not come back",
	  .help =
		"Takes it from the roster with all it holds: the master waits for it no longer and keeps no\n"
		"tombstones for it. Should it come back, it comes back empty. `pomelo status` shows holders.\n",
	  .examples = "pomelo forget agent-0123456789abcdef\n" },
	{ .name = "trace-replay", .args = "FILE", .fn = cmd_trace_replay, .flags = replay_flags,
	  .args_min = 1, .args_max = 1,
	  .summary = "play a request trace against the store, comparing every byte",
	  .help =
		"FILE has one JSON object a line: timestamp (ms) and hash_ids, the prefix blocks of a request;\n"
		"- is standard input. For each request the longest cached prefix is looked up and got, the\n"
		"missing blocks are put, and every byte that was got is compared with what its id says. Says\n"
		"hits by tier, what was moved, the time of a request, and errors.\n"
		"\n"
		"One client that finds room for all has exactly the hits the table names as possible. Several\n"
		"take the requests in turn and may meet on a block: hits differ from run to run then. Blocks\n"
		"stay in the cluster: a second run finds them; --prefix or `pomelo rm --prefix trace/` begins\n"
		"anew. --deadline is that of each call, not of the whole.\n"
		"\n"
		"Exit code 1 when a byte was wrong, 4 when blocks failed.\n",
	  .examples =
		"pomelo trace-replay trace.jsonl\n"
		"pomelo trace-replay trace.jsonl --clients 64 --block 16KiB --json\n"
		"pomelo trace-replay trace.jsonl --time-scale 1 --limit 500\n"
		"xz -dc tests/data/conversation_trace.jsonl.xz | pomelo trace-replay -\n" },
	{ .name = "bench", .args = "[NAME...]", .fn = cmd_bench, .flags = bench_flags, .args_max = 8,
	  .words = "put get exists",
	  .summary = "measure the running cluster through the client library",
	  .help =
		"NAME is put, get or exists; without one all three. Objects of random bytes are put first, as\n"
		"many as fit into a third of what is free, at most 65536 and 256 MiB: nothing of others is\n"
		"driven out. put replaces them in turn; get reads them whole, each into memory of its own, and\n"
		"compares size and first bytes; exists asks for them. They are removed in the end.\n"
		"\n"
		"Items and bytes a second are of what was answered, the times those of a call as the caller\n"
		"sees it. The machine's load is said: on a busy one the figures are its share. What was not\n"
		"measured is not printed. Comparisons with what the machine can do: bench/run (docs/performance.md).\n"
		"Exit code 1 when a byte was wrong, 4 when items failed.\n",
	  .examples =
		"pomelo bench\n"
		"pomelo bench get exists --clients 4 --batch 128\n"
		"pomelo bench put get --size 1MiB --batch 8 --flights 2 --seconds 10 --json\n" },
	{ .name = "config", .args = "[NAME]", .fn = cmd_config, .args_max = 1,
	  .words = "master agent owner planner pg client up",
	  .summary = "every setting: its value and where it comes from",
	  .help =
		"NAME is a service (also client, up) or a setting. Strongest first, a value comes from a\n"
		"flag, the environment, DIR/pomelo.conf, a foreign name (MOONCAKE_*), or it is the default.\n"
		"Works without a running cluster; secrets are never shown. -v adds range and meaning.\n"
		"Exit code 2 when a setting is wrong, as the start would.\n",
	  .examples =
		"pomelo config\n"
		"pomelo config master -v\n"
		"pomelo config beat_ms\n"
		"pomelo config --set up.grace_ms=500 --json\n" },
	{ .name = "doctor", .args = "", .fn = cmd_doctor,
	  .summary = "what this machine lacks, and the remedy",
	  .help =
		"Checks limits, shared memory, io_uring, RDMA and GPU drivers, clock, disk, ports, the data\n"
		"folder and its secret, and every running service. Each line is ok, warn or fail; exit code\n"
		"1 when there is a fail.\n",
	  .examples =
		"pomelo doctor\n"
		"pomelo doctor --json\n" },
	{ .name = "ep check", .args = "", .fn = cmd_ep_check, .flags = ep_flags,
	  .summary = "dispatch and combine on this machine, against a plain sum",
	  .help =
		"Runs expert-parallel steps, fp8 and bf16, with and without zero copy, and compares every\n"
		"number with a plain loop. Says which transport was chosen and why. Needs no cluster. Exit\n"
		"code 1 when a number differs.\n",
	  .examples =
		"pomelo ep check\n"
		"pomelo ep check --transport host --ranks 8 --experts 60 --steps 4\n" },
	{ .name = "ep bench", .args = "", .fn = cmd_ep_bench, .flags = ep_flags,
	  .summary = "how long dispatch and combine take, beside a copy",
	  .help =
		"Median times of the whole step on all ranks, the bytes they move by design, and their rate\n"
		"as a share of the copy rate measured in between.\n",
	  .examples =
		"pomelo ep bench\n"
		"pomelo ep bench --ranks 4 --tokens 64 --hidden 2048 --json\n" },
	{ .name = "weights show", .args = "FILE", .fn = cmd_weights_show, .args_min = 1, .args_max = 1,
	  .summary = "what a weight manifest holds",
	  .help =
		"FILE is a placement (wire form, draft, or parts to assemble), the manifest of stored\n"
		"weights, or a layout: rules for how the tensors of .safetensors files lie on ranks, of which\n"
		"the headers are read (docs/weights.md). Its keys tell which. It is checked whole. Needs no\n"
		"cluster.\n",
	  .examples =
		"pomelo weights show manifest.json\n"
		"pomelo weights show placement.json --json\n" },
	{ .name = "weights validate", .args = "FILE", .fn = cmd_weights_validate, .args_min = 1, .args_max = 1,
	  .summary = "check a weight manifest against every rule",
	  .help =
		"Exit code 0 when it is valid; else 1, and the line names the rule and the path of the\n"
		"field: `fragment.nbytes at parts[3].fragments[0].nbytes`.\n",
	  .examples = "pomelo weights validate placement.json\n" },
	{ .name = "weights plan", .args = "SOURCE TARGET", .fn = cmd_weights_plan, .flags = weights_plan_flags,
	  .args_min = 2, .args_max = 2,
	  .summary = "which bytes move from where to where",
	  .help =
		"SOURCE is a placement, a layout of .safetensors files or the manifest of stored weights;\n"
		"TARGET one of the first two. Prints totals,\n"
		"a table of blocks (source ranks by target ranks, darker is more) and the largest transfers;\n"
		"with --json the bytes of every pair. Nothing is moved. Needs no cluster: with --remote the\n"
		"planner of one makes the same plan, and this process only sends and prints.\n",
	  .examples =
		"pomelo weights plan trainer.json inference.json\n"
		"pomelo weights plan stored.json inference.json --participant r0003\n"
		"pomelo weights plan trainer.json inference.json --remote --deadline 10000\n" },
	{ .name = "secret new", .args = "", .fn = cmd_secret_new,
	  .summary = "make the cluster's secret",
	  .help =
		"Writes 64 random hexadecimal digits to the secret file, mode 0600. A file that is there\n"
		"is never replaced. `up` does this by itself; use it to prepare several boxes.\n",
	  .examples =
		"pomelo secret new\n"
		"pomelo secret new --secret-file /etc/pomelo/secret\n" },
	{ .name = "secret derive", .args = "ROLE [TENANT]", .fn = cmd_secret_derive,
	  .words = "client holder service admin", .args_min = 1, .args_max = 2,
	  .summary = "print the key of one role",
	  .help =
		"ROLE is client, holder, service or admin; client needs a TENANT. Whoever holds only this\n"
		"line can be that role, and no other: put it, mode 0600, where --secret-file of the\n"
		"application points. It is printed once, on standard output, and nowhere logged.\n",
	  .examples =
		"pomelo secret derive client default > client.key\n"
		"pomelo secret derive holder\n" },
	{ .name = "secret show-path", .args = "", .fn = cmd_secret_show_path,
	  .summary = "print where the secret file is",
	  .help = "The path only, never what is in it.\n",
	  .examples = "pomelo secret show-path\n" },
	{ .name = "version", .args = "", .fn = cmd_version,
	  .summary = "releases of this command and of each running service",
	  .help = "Exit code 1 when a running service has another release than this command.\n",
	  .examples =
		"pomelo version\n"
		"pomelo version --json\n" },
	{ .name = "help", .args = "[COMMAND]", .fn = cmd_help, .args_max = 2,
	  .summary = "the page of a command, or the list of all",
	  .examples =
		"pomelo help up\n"
		"pomelo help secret\n" },
	{ .name = "completion", .args = "SHELL", .fn = cmd_completion, .words = cli_shells,
	  .args_min = 1, .args_max = 1,
	  .summary = "print a completion script for a shell",
	  .help = "SHELL is bash, zsh or fish.\n",
	  .examples =
		"source <(pomelo completion bash)\n"
		"pomelo completion bash > /usr/share/bash-completion/completions/pomelo\n"
		"pomelo completion zsh > ~/.zfunc/_pomelo\n"
		"pomelo completion fish > ~/.config/fish/completions/pomelo.fish\n" },
	{ .name = "supervise", .args = "", .fn = cmd_supervise, .flags = supervise_flags,
	  .internal = true, .summary = "the process `up` leaves behind", .examples = "" },
	{ 0 },
};
/* clang-format on */
