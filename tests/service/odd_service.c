/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A service with bad manners, for tests of the supervisor: it keeps the promises a service makes to
 * its supervisor (run/NAME.pid locked, run/NAME.json, /readyz, SIGTERM, SIGHUP) except the one that
 * DATA/odd.NAME tells it to break:
 *
 *   exit CODE     says "odd: exit CODE" and ends with CODE before it is ready
 *   crash MS      is ready, and dies by SIGKILL after MS milliseconds
 *   deaf          ignores SIGTERM
 *   slow MS       becomes ready after MS milliseconds
 *   never         answers /readyz with 503 and the reason "odd: never"
 *   mute          accepts connections and never answers
 *   garbage       answers with bytes that are no HTTP
 *   chatty        writes a line of 1 KiB to its log for each /readyz
 *
 * It is started under the name of the executable it stands in for.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

struct odd {
	const char *name, *data, *run, *log;
	char word[32];
	long number;
	int listen_fd, signal_fd;
	uint16_t port;
	int64_t start_ms;
};

static int64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static const char *short_name(const char *exe)
{
	static const char *const names[][2] = { { "pomelo-master", "master" },
						{ "pomelo-transfer-agent", "agent" },
						{ "pomelo-offload-owner", "owner" },
						{ "pomelo-weight-planner", "planner" },
						{ "pomelo-pg-coordinator", "pg" } };
	const char *base = strrchr(exe, '/');
	base = base ? base + 1 : exe;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strcmp(names[i][0], base) == 0)
			return names[i][1];
	return NULL;
}

static void read_manners(struct odd *o)
{
	char path[4096];
	snprintf(path, sizeof(path), "%s/odd.%s", o->data, o->name);
	FILE *f = fopen(path, "re");
	if (!f || fscanf(f, "%31s %ld", o->word, &o->number) < 1)
		o->word[0] = '\0';
	if (f)
		fclose(f);
}

static bool is(const struct odd *o, const char *word)
{
	return strcmp(o->word, word) == 0;
}

static void take_pid_file(const struct odd *o)
{
	char path[4096], pid[32];
	snprintf(path, sizeof(path), "%s/%s.pid", o->run, o->name);
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	struct flock lk = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	if (fd < 0 || fcntl(fd, F_OFD_SETLK, &lk) != 0) {
		fprintf(stderr, "odd: %s is taken\n", path);
		exit(1);
	}
	int n = snprintf(pid, sizeof(pid), "%d\n", getpid());
	if (ftruncate(fd, 0) != 0 || write(fd, pid, (size_t)n) != n)
		exit(1);
}

static void listen_http(struct odd *o)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t n = sizeof(at);
	o->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (bind(o->listen_fd, (struct sockaddr *)&at, sizeof(at)) != 0 ||
	    listen(o->listen_fd, 16) != 0 ||
	    getsockname(o->listen_fd, (struct sockaddr *)&at, &n) != 0)
		exit(1);
	o->port = ntohs(at.sin_port);
}

static void write_json(const struct odd *o)
{
	char path[4096], tmp[4110];
	unsigned char id[16];
	snprintf(path, sizeof(path), "%s/%s.json", o->run, o->name);
	snprintf(tmp, sizeof(tmp), "%s.tmp", path);
	FILE *f = fopen(tmp, "we");
	if (!f || getrandom(id, sizeof(id), 0) != sizeof(id))
		exit(1);
	fprintf(f, "{\"name\":\"%s\",\"pid\":%d,\"instance\":\"", o->name, getpid());
	for (size_t i = 0; i < sizeof(id); i++)
		fprintf(f, "%02x", id[i]);
	fprintf(f, "\",\"rpc\":[\"ipc://%s/%s.sock\"],\"http\":\"127.0.0.1:%u\"}\n", o->run,
		o->name, o->port);
	if (fclose(f) != 0 || rename(tmp, path) != 0)
		exit(1);
}

static void answer(const struct odd *o)
{
	char request[512], line[1024];
	int fd = accept4(o->listen_fd, NULL, NULL, SOCK_CLOEXEC);
	if (fd < 0)
		return;
	if (is(o, "mute"))
		return; /* left open */
	bool late = is(o, "slow") && now_ms() - o->start_ms < o->number;
	const char *text = "HTTP/1.0 200 OK\r\n\r\n{\"ready\":true,\"reasons\":[]}";
	if (is(o, "never") || late)
		text = "HTTP/1.0 503 No\r\n\r\n{\"ready\":false,\"reasons\":[\"odd: never\"]}";
	if (is(o, "garbage"))
		text = "\x01\x02\x03 this is no HTTP at all, nor will it ever be";
	if (is(o, "chatty")) {
		memset(line, 'x', sizeof(line) - 1);
		line[sizeof(line) - 1] = '\0';
		fprintf(stderr, "%s\n", line);
	}
	ssize_t n = recv(fd, request, sizeof(request), 0);
	if (n > 0)
		send(fd, text, strlen(text), MSG_NOSIGNAL);
	close(fd);
}

/* One signal; returns true when it is time to go. */
static bool on_signal(const struct odd *o)
{
	struct signalfd_siginfo si;
	if (read(o->signal_fd, &si, sizeof(si)) != sizeof(si))
		return false;
	if (si.ssi_signo == SIGHUP && o->log) {
		int fd = open(o->log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
		if (fd >= 0)
			dup2(fd, 2);
		fprintf(stderr, "odd: log opened again\n");
	}
	return si.ssi_signo == SIGTERM && !is(o, "deaf");
}

/* Never runs, for the signal stays blocked; but /proc says that SIGHUP is caught. */
static void on_hup(int signum)
{
}

static void catch_signals(struct odd *o)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	sigprocmask(SIG_BLOCK, &set, NULL);
	o->signal_fd = signalfd(-1, &set, SFD_CLOEXEC);
	signal(SIGHUP, on_hup);
}

static void serve(struct odd *o)
{
	for (;;) {
		struct pollfd p[2] = { { .fd = o->listen_fd, .events = POLLIN },
				       { .fd = o->signal_fd, .events = POLLIN } };
		int64_t left = is(o, "crash") ? o->start_ms + o->number - now_ms() : -1;
		if (is(o, "crash") && left <= 0)
			raise(SIGKILL);
		poll(p, 2, (int)left);
		if (p[0].revents)
			answer(o);
		if (p[1].revents && on_signal(o))
			return;
	}
}

int main(int argc, char **argv)
{
	char run[4096];
	struct odd o = { .name = short_name(argv[0]), .start_ms = now_ms() };
	for (int i = 1; i + 1 < argc; i++) {
		if (strcmp(argv[i], "--data") == 0)
			o.data = argv[i + 1];
		if (strcmp(argv[i], "--run-dir") == 0)
			o.run = argv[i + 1];
		if (strcmp(argv[i], "--log-file") == 0)
			o.log = argv[i + 1];
	}
	if (!o.name || !o.data) {
		fprintf(stderr, "odd: no name or no --data\n");
		return 2;
	}
	snprintf(run, sizeof(run), "%s/run", o.data);
	o.run = o.run ? o.run : run;
	read_manners(&o);
	if (is(&o, "exit")) {
		fprintf(stderr, "odd: exit %ld\n", o.number);
		return (int)o.number;
	}
	take_pid_file(&o);
	catch_signals(&o);
	listen_http(&o);
	write_json(&o);
	serve(&o);
	return 0;
}
