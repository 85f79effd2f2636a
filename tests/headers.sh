#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Each header compiles alone: headers.sh SOURCE_ROOT BUILD_ROOT CC [FLAGS...]
root=$1
build=$2
shift 2
passed=0
failed=0
for h in $(cd "$root" && find common proto services docs -name '*.h' | sort); do
	case $h in
	*/gpu/kernels/*) continue ;; # for nvcc
	esac
	if printf '#include "%s"\n' "$h" | "$@" -std=gnu17 -D_GNU_SOURCE -Wall -Wextra -Werror \
		-Wno-unused-parameter -Wno-unused-function -Wno-unused-const-variable \
		-Wno-missing-field-initializers -Wno-unused-variable -fsyntax-only \
		-I"$root" -I"$root/common" -I"$root/proto" -I"$root/services" \
		-I"$root/services/sdk/include" -I"$build/services/sdk" -x c -; then
		passed=$((passed + 1))
	else
		echo "$h does not compile alone"
		failed=$((failed + 1))
	fi
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
