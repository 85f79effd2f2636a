/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl_test.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#define ID "0123456789abcdef0123456789abcdef"

static const char good[] = "{\"name\":\"agent\",\"pid\":77,\"instance\":\"" ID
			   "\",\"rpc\":[\"ipc:///a/b.sock\",\"tcp://127.0.0.1:17601\"],"
			   "\"http\":\"127.0.0.1:17611\",\"newer\":{}}\n";

Test(run, reads_what_a_service_writes, .timeout = 10)
{
	struct scratch s;
	struct run_info info = { 0 };
	scratch_init(&s);
	cr_expect_eq(run_read(s.path, "agent", &info), ERR_NOT_FOUND);
	scratch_write(&s, "agent.json", good, 0600);
	cr_assert_eq(run_read(s.path, "agent", &info), ERR_NONE);
	cr_expect_eq(info.pid, 77);
	cr_expect_str_eq(info.instance, ID);
	cr_expect_str_eq(info.http, "127.0.0.1:17611");
	cr_expect_eq(info.n_rpc, 2);
	cr_expect_str_eq(info.rpc[1], "tcp://127.0.0.1:17601");
	scratch_fini(&s);
	NO_LEAKS();
}

/* B5: whatever is in the file, an error or a right answer; out stays as it was on an error. */
Test(run, refuses_what_is_broken, .timeout = 10)
{
	static const char *const bad[] = {
		"",
		"{",
		"[]",
		"null",
		"{\"name\":\"owner\",\"pid\":77,\"instance\":\"" ID
		"\",\"rpc\":[],\"http\":\"\"}",
		"{\"name\":\"agent\",\"pid\":0,\"instance\":\"" ID
		"\",\"rpc\":[],\"http\":\"\"}",
		"{\"name\":\"agent\",\"pid\":-4,\"instance\":\"" ID
		"\",\"rpc\":[],\"http\":\"\"}",
		"{\"name\":\"agent\",\"pid\":4294967297,\"instance\":\"" ID
		"\",\"rpc\":[],\"http\":\"\"}",
		"{\"name\":\"agent\",\"pid\":\"77\",\"instance\":\"" ID
		"\",\"rpc\":[],\"http\":\"\"}",
		"{\"name\":\"agent\",\"pid\":77,\"instance\":\"short\",\"rpc\":[],\"http\":\"\"}",
		"{\"name\":\"agent\",\"pid\":77,\"instance\":\"" ID
		"00\",\"rpc\":[],\"http\":\"\"}",
		"{\"name\":\"agent\",\"pid\":77,\"instance\":\"0123456789ABCDEF0123456789abcdef\","
		"\"rpc\":[],\"http\":\"\"}",
		"{\"name\":\"agent\",\"pid\":77,\"instance\":\"" ID
		"\",\"rpc\":{},\"http\":\"\"}",
		"{\"name\":\"agent\",\"pid\":77,\"instance\":\"" ID
		"\",\"rpc\":[1],\"http\":\"\"}",
		"{\"name\":\"agent\",\"pid\":77,\"instance\":\"" ID
		"\",\"rpc\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\"],\"http\":\"\"}",
		"{\"name\":\"agent\",\"pid\":77,\"instance\":\"" ID "\",\"rpc\":[]}",
		"{\"name\":\"agent\",\"name\":\"agent\",\"pid\":77,\"instance\":\"" ID
		"\",\"rpc\":[],\"http\":\"\"}",
	};
	struct scratch s;
	scratch_init(&s);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct run_info info = { .pid = 5 };
		scratch_write(&s, "agent.json", bad[i], 0600);
		cr_expect_eq(run_read(s.path, "agent", &info), ERR_CORRUPT, "%s", bad[i]);
		cr_expect_eq(info.pid, 5);
	}
	scratch_fini(&s);
	NO_LEAKS();
}

Test(run, refuses_large_files_and_links, .timeout = 10)
{
	struct scratch s;
	struct run_info info = { 0 };
	char *big = calloc(1, RUN_FILE_BYTES_MAX + 2);
	scratch_init(&s);
	memset(big, ' ', RUN_FILE_BYTES_MAX + 1);
	scratch_write(&s, "agent.json", big, 0600);
	cr_expect_eq(run_read(s.path, "agent", &info), ERR_TOO_LARGE);
	scratch_write(&s, "elsewhere", good, 0600);
	cr_assert_eq(unlink(scratch_at(&s, "agent.json")), 0);
	cr_assert_eq(symlink(scratch_at(&s, "elsewhere"), scratch_at(&s, "agent.json")), 0);
	cr_expect_neq(run_read(s.path, "agent", &info), ERR_NONE);
	free(big);
	scratch_fini(&s);
	NO_LEAKS();
}

Test(run, survives_mutations, .timeout = 20)
{
	struct scratch s;
	char text[sizeof(good)];
	scratch_init(&s);
	for (size_t i = 0; i < sizeof(good) - 1; i++) {
		struct run_info info = { 0 };
		memcpy(text, good, sizeof(good));
		text[i] = (char)(text[i] ^ (1 << (i % 7)));
		scratch_write(&s, "agent.json", text, 0600);
		if (run_read(s.path, "agent", &info) == ERR_NONE)
			cr_assert(info.pid > 0 && info.n_rpc <= RUN_RPC_MAX);
	}
	scratch_fini(&s);
	NO_LEAKS();
}

/* The holder is who has the lock, not who is named in the file. */
Test(run, holder_is_who_has_the_lock, .timeout = 10)
{
	struct scratch s;
	pid_t pid = 0;
	int fd = -1;
	scratch_init(&s);
	cr_expect_eq(run_holder(s.path, "pg", &pid), ERR_NOT_FOUND);
	cr_expect_not(run_any_held(s.path));
	scratch_write(&s, "pg.pid", "4242\n", 0600);
	cr_expect_eq(run_holder(s.path, "pg", &pid), ERR_NOT_FOUND,
		     "a file alone means nothing");
	cr_assert_eq(path_lock(scratch_at(&s, "pg.pid"), &fd, NULL), ERR_NONE);
	cr_expect_eq(run_holder(s.path, "pg", &pid), ERR_NONE);
	cr_expect_eq(pid, 4242);
	cr_expect(run_any_held(s.path));
	cr_assert_eq(ftruncate(fd, 0), 0);
	cr_expect_eq(run_holder(s.path, "pg", &pid), ERR_BUSY, "locked, not written yet");
	cr_assert_eq(pwrite(fd, "1\n", 2, 0), 2);
	cr_expect_eq(run_holder(s.path, "pg", &pid), ERR_BUSY, "init is no service");
	close(fd);
	cr_expect_eq(run_holder(s.path, "pg", &pid), ERR_NOT_FOUND);
	scratch_fini(&s);
}

Test(run, endpoints_are_merged, .timeout = 10)
{
	struct scratch s;
	struct run_info a = { .pid = 7, .instance = ID, .http = "127.0.0.1:1", .n_rpc = 1 };
	struct why why = { 0 };
	scratch_init(&s);
	snprintf(a.rpc[0], RUN_ADDR_MAX, "ipc:///x/a\"b.sock");
	struct run_endpoint e[] = { { "master", NULL }, { "agent", &a } };
	cr_assert_eq(run_endpoints_write(s.path, e, 2, &why), ERR_NONE, "%s", why.text);
	json_t *o = json_load_file(scratch_at(&s, "endpoints.json"), 0, NULL);
	cr_assert_not_null(o);
	json_t *list = json_object_get(o, "services");
	cr_expect_eq(json_integer_value(json_object_get(o, "version")), 1);
	cr_expect_eq(json_array_size(list), 1);
	json_t *one = json_array_get(list, 0);
	cr_expect_str_eq(json_string_value(json_object_get(one, "name")), "agent");
	cr_expect_str_eq(json_string_value(json_array_get(json_object_get(one, "rpc"), 0)),
			 "ipc:///x/a\"b.sock");
	json_decref(o);
	cr_expect_neq(run_endpoints_write("/nonexistent/folder", e, 2, &why), ERR_NONE);
	cr_expect(strstr(why.text, "/nonexistent/folder"), "%s", why.text);
	scratch_fini(&s);
	NO_LEAKS();
}
