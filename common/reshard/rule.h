/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every reason for which a manifest, binding, plan or upload is refused: one row each. The names
 * are those of the shared vectors, but for the rows at the end from upload.names on, which are ours
 * alone.
 *
 * F(ENUM, "name", error, "text")
 *
 * A refusal is a struct reject: the rule, the path of the field as the input has it
 * ("parts[3].fragments[0].nbytes"), and one line for a person. The first refusal stays.
 *
 * Thread: any. Pure.
 */
#pragma once

#include "base/err.h"

/* clang-format off */
#define RULE_TABLE(F) \
	F(JSON_SYNTAX, "json.syntax", BAD_MANIFEST, "the text is not exactly one JSON value") \
	F(JSON_ROOT_TYPE, "json.root_type", BAD_MANIFEST, "something other than a JSON object stands where an object is required") \
	F(JSON_DUPLICATE_KEY, "json.duplicate_key", BAD_MANIFEST, "a key occurs twice in one object, at any depth, even with equal values") \
	F(JSON_NON_FINITE, "json.non_finite", BAD_MANIFEST, "NaN, Infinity or -Infinity occurs") \
	F(JSON_FIELDS, "json.fields", BAD_MANIFEST, "an object lacks a required key or has a key that is not listed") \
	F(JSON_RESOURCE_KIND, "json.resource_kind", BAD_MANIFEST, "resource_kind is not model_weight") \
	F(JSON_INTEGER, "json.integer", BAD_MANIFEST, "an integer field holds a number with a fraction or exponent, a string, true/false or null") \
	F(JSON_INTEGER_RANGE, "json.integer_range", BAD_MANIFEST, "an integer is below its minimum, or weight_generation or a placement fragment's nbytes exceeds 2^64-1") \
	F(JSON_STRING, "json.string", BAD_MANIFEST, "a name or text field is not a string, or is empty") \
	F(JSON_ARRAY, "json.array", BAD_MANIFEST, "a list field is not an array") \
	F(TOPOLOGY_SIZE, "topology.size", BAD_MANIFEST, "an axis size is below 1") \
	F(TOPOLOGY_EMPTY, "topology.empty", BAD_MANIFEST, "no participants") \
	F(TOPOLOGY_DUPLICATE_PARTICIPANT, "topology.duplicate_participant", BAD_MANIFEST, "two participants share a name") \
	F(TOPOLOGY_DUPLICATE_RANK, "topology.duplicate_rank", BAD_MANIFEST, "two participants share all four coordinates") \
	F(TOPOLOGY_RANK_RANGE, "topology.rank_range", BAD_MANIFEST, "a coordinate is not below the size of its axis") \
	F(ID_TOPOLOGY, "id.topology", BAD_MANIFEST, "a given topology_id differs from the derived one") \
	F(AXIS_SEMANTICS, "axis.semantics", BAD_MANIFEST, "semantics is not split, replicated or ownership") \
	F(AXIS_KIND, "axis.kind", BAD_MANIFEST, "kind is not dp, pp, ep or tp") \
	F(AXIS_SPLIT_KIND, "axis.split_kind", BAD_MANIFEST, "a split axis is dp or pp") \
	F(AXIS_EP_LEADING, "axis.ep_leading", BAD_MANIFEST, "an ep split names a dimension other than 0") \
	F(AXIS_DUPLICATE_KIND, "axis.duplicate_kind", BAD_MANIFEST, "a tensor lists one kind twice") \
	F(AXIS_SHARED_DIM, "axis.shared_dim", BAD_MANIFEST, "two split axes name the same dimension") \
	F(AXIS_DIM_RANGE, "axis.dim_range", BAD_MANIFEST, "a split dimension does not exist in the tensor") \
	F(TENSOR_SHAPE_EMPTY, "tensor.shape_empty", BAD_MANIFEST, "global_shape is empty") \
	F(TENSOR_SHAPE_EXTENT, "tensor.shape_extent", BAD_MANIFEST, "an extent of global_shape is below 1") \
	F(TENSOR_SHARD_DIMS_DUPLICATE, "tensor.shard_dims_duplicate", BAD_MANIFEST, "shard_dims repeats a dimension") \
	F(TENSOR_SHARD_DIMS_ORDER, "tensor.shard_dims_order", BAD_MANIFEST, "shard_dims is not ascending") \
	F(TENSOR_SHARD_DIMS_RANGE, "tensor.shard_dims_range", BAD_MANIFEST, "shard_dims names a dimension that does not exist") \
	F(TENSOR_SHARD_DIMS_CONFLICT, "tensor.shard_dims_conflict", BAD_MANIFEST, "shard_dims is not exactly the sorted list of split dimensions") \
	F(TENSOR_EXPERT_SPLIT, "tensor.expert_split", BAD_MANIFEST, "expert_id is set and ep is a split axis") \
	F(TENSOR_DUPLICATE, "tensor.duplicate", BAD_MANIFEST, "a tensor name is listed twice") \
	F(FRAGMENT_EXTENT, "fragment.extent", BAD_MANIFEST, "an extent of local_shape is below 1") \
	F(FRAGMENT_RANK_COUNT, "fragment.rank_count", BAD_MANIFEST, "the box has another number of dimensions than the tensor") \
	F(FRAGMENT_OUT_OF_BOUNDS, "fragment.out_of_bounds", BAD_MANIFEST, "offset plus extent passes the tensor in some dimension") \
	F(FRAGMENT_NBYTES, "fragment.nbytes", BAD_MANIFEST, "nbytes is not the product of local_shape times itemsize") \
	F(FRAGMENT_DUPLICATE_ID, "fragment.duplicate_id", BAD_MANIFEST, "a fragment id occurs twice in the placement") \
	F(FRAGMENT_DUPLICATE_BOX, "fragment.duplicate_box", BAD_MANIFEST, "same tensor, rank, offset and shape twice (under different ids)") \
	F(FRAGMENT_OVERLAP, "fragment.overlap", BAD_MANIFEST, "two boxes of one tensor at one rank overlap") \
	F(ALIAS_DUPLICATE, "alias.duplicate", BAD_MANIFEST, "a name occurs twice in an alias group") \
	F(ALIAS_TOO_SMALL, "alias.too_small", BAD_MANIFEST, "an alias group has exactly one name") \
	F(ALIAS_NOT_MEMBER, "alias.not_member", BAD_MANIFEST, "an alias group does not contain the fragment's own tensor") \
	F(ALIAS_UNKNOWN_MEMBER, "alias.unknown_member", BAD_MANIFEST, "an alias group names a tensor the placement does not have (checked on the whole placement only)") \
	F(ALIAS_INCONSISTENT, "alias.inconsistent", BAD_MANIFEST, "some fragment of a member carries another group, or none (whole placement only)") \
	F(PART_FRAGMENT_RANK, "part.fragment_rank", BAD_MANIFEST, "a fragment's rank differs from its part's rank") \
	F(PART_UNKNOWN_TENSOR, "part.unknown_tensor", BAD_MANIFEST, "a fragment names a tensor that is not listed") \
	F(PART_UNREFERENCED_TENSOR, "part.unreferenced_tensor", BAD_MANIFEST, "a listed tensor is used by no fragment (of the part, when parts carry their own lists)") \
	F(PART_DUPLICATE, "part.duplicate", BAD_MANIFEST, "two parts for one participant") \
	F(PART_MISSING, "part.missing", BAD_MANIFEST, "a participant has no part (an empty part is fine)") \
	F(PART_UNKNOWN, "part.unknown", BAD_MANIFEST, "a part for a participant the topology does not have") \
	F(PART_TOPOLOGY_RANK, "part.topology_rank", BAD_MANIFEST, "the part's rank differs from the topology's") \
	F(PART_RESOURCE_ID, "part.resource_id", BAD_MANIFEST, "another resource") \
	F(PART_REVISION, "part.revision", BAD_MANIFEST, "another revision") \
	F(PART_WEIGHT_GENERATION, "part.weight_generation", BAD_MANIFEST, "another weight generation") \
	F(PART_PLACEMENT_SET_ID, "part.placement_set_id", BAD_MANIFEST, "another placement set") \
	F(PART_TOPOLOGY_ID, "part.topology_id", BAD_MANIFEST, "built for another topology") \
	F(PART_DESCRIPTOR_MISMATCH, "part.descriptor_mismatch", BAD_MANIFEST, "two parts describe one tensor differently (any field)") \
	F(PLACEMENT_EMPTY, "placement.empty", BAD_MANIFEST, "no tensors or no fragments") \
	F(ID_PLACEMENT, "id.placement", BAD_MANIFEST, "a given placement_id differs from the derived one") \
	F(UNDECLARED_REQUIRED, "undeclared.required", BAD_MANIFEST, "an axis of size above 1 is not declared and is dp or pp, or the tensor's fragments sit at a single coordinate of it") \
	F(UNDECLARED_VARIES, "undeclared.varies", BAD_MANIFEST, "an undeclared ep or tp coordinate varies although no declared axis does") \
	F(UNDECLARED_INDEPENDENT, "undeclared.independent", BAD_MANIFEST, "an undeclared ep or tp coordinate is not a function of the declared coordinates that vary") \
	F(COVER_REPLICAS, "cover.replicas", BAD_MANIFEST, "the replicated coordinates present differ from those of the participants of that owner") \
	F(COVER_INCOMPLETE, "cover.incomplete", BAD_MANIFEST, "the boxes of one owner and replica do not tile the tensor exactly") \
	F(SPLIT_PARTICIPATION, "split.participation", BAD_MANIFEST, "the split coordinates present are not exactly those of the participants, or the participants do not cover 0..size-1 of a split axis") \
	F(SPLIT_CARTESIAN, "split.cartesian", BAD_MANIFEST, "with several split axes, the coordinates present are not a full grid") \
	F(SPLIT_GEOMETRY, "split.geometry", BAD_MANIFEST, "along a split dimension the merged intervals of the ranks do not tile the dimension one after another") \
	F(STORED_MANIFEST_KEY, "stored.manifest_key", BAD_MANIFEST, "manifest_key is not group_id followed by /manifest") \
	F(STORED_OBJECT_KEY, "stored.object_key", BAD_MANIFEST, "an object_key does not start with group_id followed by /payload/") \
	F(STORED_DUPLICATE_ID, "stored.duplicate_id", BAD_MANIFEST, "a fragment id occurs twice") \
	F(STORED_DUPLICATE_BOX, "stored.duplicate_box", BAD_MANIFEST, "same tensor, offset and shape twice") \
	F(STORED_COVERAGE, "stored.coverage", BAD_MANIFEST, "the boxes of a tensor do not tile it exactly") \
	F(STORED_ALIAS, "stored.alias", BAD_MANIFEST, "an alias names an unlisted tensor; or for some group, box and size not every member has a fragment; or the members' descriptors differ in anything but the name") \
	F(STORED_OBJECT_RANGE, "stored.object_range", BAD_MANIFEST, "two fragments overlap inside one object") \
	F(BINDING_DIGEST_FORMAT, "binding.digest_format", BAD_MANIFEST, "placement_digest is not 64 lower-case hex digits") \
	F(BINDING_ADDRESS, "binding.address", BAD_MANIFEST, "an address is 0") \
	F(BINDING_ADDRESS_RANGE, "binding.address_range", BAD_MANIFEST, "address plus size exceeds 2^64-1") \
	F(BINDING_STRIDE_COUNT, "binding.stride_count", BAD_MANIFEST, "number of strides differs from the number of extents") \
	F(BINDING_STRIDE_ZERO, "binding.stride_zero", BAD_MANIFEST, "stride 0 on an extent above 1") \
	F(BINDING_STORAGE_OFFSET, "binding.storage_offset", BAD_MANIFEST, "address is not storage_address plus storage_offset_bytes") \
	F(BINDING_STORAGE_BOUNDS, "binding.storage_bounds", BAD_MANIFEST, "the view runs past its allocation") \
	F(BINDING_DUPLICATE_ID, "binding.duplicate_id", BAD_MANIFEST, "a placement fragment id or runtime fragment id occurs twice in one binding") \
	F(BINDING_IDENTITY, "binding.identity", BAD_MANIFEST, "resource, revision, placement id or digest differ from the placement") \
	F(BINDING_PARTICIPANTS, "binding.participants", BAD_MANIFEST, "the set of bindings is not exactly one per participant with fragments") \
	F(BINDING_FRAGMENT_UNKNOWN, "binding.fragment_unknown", BAD_MANIFEST, "a bound fragment the part does not have") \
	F(BINDING_FRAGMENT_MISSING, "binding.fragment_missing", BAD_MANIFEST, "a fragment of the part is not bound") \
	F(BINDING_NBYTES, "binding.nbytes", BAD_MANIFEST, "size differs from the placement") \
	F(BINDING_SHAPE, "binding.shape", BAD_MANIFEST, "shape differs from the placement") \
	F(BINDING_ITEMSIZE, "binding.itemsize", BAD_MANIFEST, "item size differs from the tensor") \
	F(BINDING_STRIDES, "binding.strides", BAD_MANIFEST, "strides are not row-major contiguous (after extents of 1 are normalised)") \
	F(BINDING_OVERLAP, "binding.overlap", BAD_MANIFEST, "two address ranges in one address space overlap and are not an exact declared alias") \
	F(BINDING_STORAGE_OVERLAP, "binding.storage_overlap", BAD_MANIFEST, "two allocations in one address space overlap without being equal") \
	F(PLAN_IDENTITY, "plan.identity", BAD_MANIFEST, "resource, revision or weight generation differ") \
	F(PLAN_PARTICIPANT, "plan.participant", INVALID_PARAMS, "unknown participant, or none named while there are several") \
	F(PLAN_TENSOR_SET, "plan.tensor_set", BAD_MANIFEST, "tensor sets differ. Local target: the participant wants a tensor the source lacks") \
	F(PLAN_LOCAL_EMPTY, "plan.local_empty", BAD_MANIFEST, "the participant has no fragments") \
	F(PLAN_LAYOUT, "plan.layout", BAD_MANIFEST, "layout_fingerprint differs") \
	F(PLAN_DESCRIPTOR, "plan.descriptor", BAD_MANIFEST, "shape, dtype, itemsize, layer or expert differ") \
	F(PLAN_TARGET_COVERAGE, "plan.target_coverage", BAD_MANIFEST, "a tensor is absent or not whole at some target DP rank or owner") \
	F(PLAN_SOURCE_REPLICA, "plan.source_replica", BAD_MANIFEST, "no DP rank holds every replicated tensor whole") \
	F(PLAN_DP_OWNER, "plan.dp_owner", BAD_MANIFEST, "a DP-owned source tensor does not have exactly one owner, whole") \
	F(LIMITS_POSITIVE, "limits.positive", INVALID_PARAMS, "a limit is below 1 or not an integer") \
	F(LIMITS_REGIONS, "limits.regions", LIMIT, "more regions than max_transfer_regions") \
	F(LIMITS_SEGMENTS_PER_REGION, "limits.segments_per_region", LIMIT, "a region has more segments than max_segments_per_region") \
	F(LIMITS_TOTAL_SEGMENTS, "limits.total_segments", LIMIT, "the running total of segments exceeds max_total_lowered_segments") \
	F(UPLOAD_DP_OWNED, "upload.dp_owned", BAD_MANIFEST, "some tensor of the placement is DP-owned") \
	F(UPLOAD_NO_CONSISTENT_REPLICA, "upload.no_consistent_replica", BAD_MANIFEST, "no DP rank is whole at a single generation") \
	F(UPLOAD_GENERATIONS_DIFFER, "upload.generations_differ", BAD_MANIFEST, "several DP ranks are whole, each at a single generation, but not all at the same one") \
	F(UPLOAD_NAMES, "upload.names", INVALID_PARAMS, "an empty key prefix or namespace, or a transaction that is not 32 lower-case hex digits") \
	F(SAFETENSORS_HEADER, "safetensors.header", BAD_MANIFEST, "the file does not begin with a safetensors header, or its data is shorter or longer than the header says") \
	F(SAFETENSORS_TENSOR, "safetensors.tensor", BAD_MANIFEST, "a tensor's dtype is not known, its bytes are not its shape times the item size, or the tensors' bytes do not follow one another") \
	F(LAYOUT_RULE, "layout.rule", BAD_MANIFEST, "a rule's pattern or an axis of it makes no sense") \
	F(LAYOUT_MATCH, "layout.match", BAD_MANIFEST, "a tensor matches no rule, or a rule no tensor") \
	F(PLAN_CANCELLED, "plan.cancelled", CANCELLED, "the caller gave up, or the deadline passed") \
	F(LIMIT_MEMORY, "limit.memory", NO_MEMORY, "more memory than the limit allows") \
	F(LIMIT_TEXT_BYTES, "limit.text_bytes", TOO_LARGE, "the text is longer than the limit") \
	F(LIMIT_NODES, "limit.nodes", TOO_LARGE, "more values in the text than the limit") \
	F(LIMIT_DEPTH, "limit.depth", TOO_LARGE, "nested deeper than the limit") \
	F(LIMIT_OBJECT_KEYS, "limit.object_keys", TOO_LARGE, "more keys in an object than any of ours has") \
	F(LIMIT_DIMS, "limit.dims", TOO_LARGE, "more dimensions than 32") \
	F(LIMIT_COUNT, "limit.count", TOO_LARGE, "more records than 2^31") \
	F(LIMIT_WORK, "limit.work", LIMIT, "the boxes are too irregular: the work budget is spent")
/* clang-format on */

enum rule {
	RULE_NONE,
#define RULE_ENUM(name, str, err, text) RULE_##name,
	RULE_TABLE(RULE_ENUM)
#undef RULE_ENUM
		RULE_N
};

/* "fragment.nbytes"; "none" for RULE_NONE. */
const char *rule_name(enum rule r);
const char *rule_text(enum rule r);
enum err rule_err(enum rule r);

struct reject {
	enum rule rule; /* RULE_NONE: nothing was refused */
	char path[192]; /* "" when the whole input is meant */
	char text[192]; /* what was found and what is allowed */
};

/* Records the refusal unless there is one already; false, so that a check can return it. w may not
 * be NULL. */
bool reject_set(struct reject *w, enum rule r, const char *path, const char *fmt, ...)
	PRINTF_LIKE(4, 5);
/* "fragment.nbytes at parts[0].fragments[1].nbytes: ..." into why (may be NULL); the error. */
enum err reject_why(const struct reject *w, struct why *why);
