/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A KV cache of an engine, in C++: for each request, the longest prefix of its blocks that is cached is read
 * and the rest is written, with one call each for looking, reading and writing.
 *
 *	c++ -std=c++17 prefix_cache.cc -o prefix_cache $(pkg-config --cflags --libs pomelo)
 *
 * Needs a running cluster (`pomelo up`); the data folder as everywhere: POMELO_DATA.
 */
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "pml_snapshot.h"

namespace
{

struct Closer {
	void operator()(pml *p) const { pml_close(p); }
	void operator()(pml_op *op) const { pml_op_free(op); }
	void operator()(pml_snapshot *s) const { pml_snapshot_close(s); }
};

using Handle = std::unique_ptr<pml, Closer>;
using Op = std::unique_ptr<pml_op, Closer>;
using Snapshot = std::unique_ptr<pml_snapshot, Closer>;
using Block = std::vector<unsigned char>;

[[noreturn]] void fail(const char *what, const pml_error &err)
{
	throw std::runtime_error(std::string(what) + ": " + err.text + " (" +
				 pml_error_name(err.code) + ")");
}

class PrefixCache
{
      public:
	explicit PrefixCache(std::string prefix) : prefix_(std::move(prefix))
	{
		pml_error err = PML_ERROR_INIT;
		pml *p = nullptr;
		if (pml_open(nullptr, &p, &err) != PML_ERR_NONE)
			fail("open", err);
		p_.reset(p);
	}

	/* How many of the ids, from the first on, are there. */
	size_t lookup(const std::vector<unsigned> &ids)
	{
		Items t(*this, ids, nullptr, 0, ids.size());
		pml_error err = PML_ERROR_INIT;
		pml_op *op = nullptr;
		if (pml_exists_start(p_.get(), t.v.data(), t.v.size(), nullptr, nullptr,
				     nullptr, &op, &err) != PML_ERR_NONE)
			fail("exists", err);
		std::vector<int> codes = finish(op);
		size_t n = 0;
		while (n < codes.size() && codes[n] == PML_ERR_NONE)
			n++;
		return n;
	}

	/*
	 * The first n blocks; false: one has gone meanwhile, which is a miss. They are leased together before the
	 * first byte moves: no eviction comes between the first and the last.
	 */
	bool read(const std::vector<unsigned> &ids, std::vector<Block> &blocks, size_t n)
	{
		Items t(*this, ids, &blocks, 0, n);
		pml_error err = PML_ERROR_INIT;
		pml_op *op = nullptr;
		pml_snapshot *raw = nullptr;
		if (n == 0)
			return true;
		int e = pml_snapshot_open(p_.get(), t.v.data(), n, nullptr, &raw, &err);
		if (e == PML_ERR_NOT_FOUND)
			return false;
		if (e != PML_ERR_NONE)
			fail("snapshot", err);
		Snapshot s(raw);
		if (pml_snapshot_get_start(s.get(), t.v.data(), n, nullptr, nullptr, nullptr,
					   &op, &err) != PML_ERR_NONE)
			fail("get", err);
		for (int code : finish(op))
			if (code != PML_ERR_NONE)
				return false;
		return true;
	}

	void write(const std::vector<unsigned> &ids, std::vector<Block> &blocks, size_t first)
	{
		Items t(*this, ids, &blocks, first, ids.size() - first);
		pml_error err = PML_ERROR_INIT;
		pml_op *op = nullptr;
		if (t.v.empty())
			return;
		if (pml_put_start(p_.get(), t.v.data(), t.v.size(), nullptr, nullptr, nullptr,
				  &op, &err) != PML_ERR_NONE)
			fail("put", err);
		for (int code : finish(op)) /* an equal block of somebody else is as good */
			if (code != PML_ERR_NONE && code != PML_ERR_ALREADY_EXISTS &&
			    code != PML_ERR_BUSY_WRITING)
				throw std::runtime_error(pml_error_text(code));
	}

	uint64_t clear()
	{
		pml_error err = PML_ERROR_INIT;
		uint64_t n = 0;
		if (pml_remove_prefix(p_.get(), prefix_.data(), prefix_.size(), nullptr, &n,
				      &err) != PML_ERR_NONE)
			fail("remove_prefix", err);
		return n;
	}

      private:
	/* The items of a call, and what they point to. */
	struct Items {
		std::vector<std::string> keys;
		std::vector<pml_buf> bufs;
		std::vector<pml_item> v;

		Items(const PrefixCache &c, const std::vector<unsigned> &ids,
		      std::vector<Block> *blocks, size_t first, size_t n)
			: keys(n), bufs(n), v(n)
		{
			for (size_t i = 0; i < n; i++) {
				pml_item it = PML_ITEM_INIT;
				keys[i] = c.prefix_ + std::to_string(ids[first + i]);
				it.key = keys[i].data();
				it.key_bytes = keys[i].size();
				if (blocks) {
					bufs[i].p = (*blocks)[first + i].data();
					bufs[i].n = (*blocks)[first + i].size();
					it.bufs = &bufs[i];
					it.n_bufs = 1;
				}
				v[i] = it;
			}
		}
	};

	std::vector<int> finish(pml_op *raw)
	{
		Op op(raw);
		std::vector<int> codes(pml_op_n(raw));
		(void)pml_op_wait(raw);
		for (size_t i = 0; i < codes.size(); i++) {
			pml_result r = PML_RESULT_INIT;
			int e = pml_op_result(raw, i, &r);
			codes[i] = e != PML_ERR_NONE ? e : r.code;
		}
		return codes;
	}

	Handle p_;
	std::string prefix_;
};

/* What a model would compute for a block: here, bytes that follow from its id. */
void compute(Block &b, unsigned id)
{
	for (size_t i = 0; i < b.size(); i++)
		b[i] = static_cast<unsigned char>(id * 31 + i * 7);
}

} // namespace

int main()
try {
	const std::vector<std::vector<unsigned>> requests = {
		{ 1, 2, 3 }, { 1, 2, 3, 4, 5 }, { 1, 2, 6 }, { 7 }, { 1, 2, 3, 4, 5 },
	};
	const size_t want[] = { 0, 3, 2, 0, 5 };
	PrefixCache cache("example/prefix/");
	size_t bad = 0;
	cache.clear();
	for (size_t r = 0; r < requests.size(); r++) {
		const std::vector<unsigned> &ids = requests[r];
		std::vector<Block> blocks(ids.size(), Block(16384));
		size_t n = cache.lookup(ids);
		if (!cache.read(ids, blocks, n))
			n = 0;
		for (size_t i = 0; i < ids.size(); i++) {
			Block right(16384);
			compute(right, ids[i]);
			bad += i < n && blocks[i] != right;
			blocks[i] = right;
		}
		cache.write(ids, blocks, n);
		std::printf("request %zu: %zu of %zu blocks were cached\n", r, n, ids.size());
		bad += n != want[r];
	}
	bad += cache.clear() != 7;
	if (bad)
		std::fprintf(stderr, "prefix_cache: %zu things are not as expected\n", bad);
	return bad != 0;
} catch (const std::exception &e) {
	std::fprintf(stderr, "prefix_cache: %s\n", e.what());
	return 1;
}
