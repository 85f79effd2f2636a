#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes the certificates that the TLS tests use, in the folder given: tls_certs.sh DIR
#   ca.pem other_ca.pem           two authorities
#   server.pem                    localhost and 127.0.0.1, as DNS and as IP names
#   ip_only.pem                   127.0.0.1 as an IP name only
#   wrong_name.pem                example.test
#   expired.pem                   as server.pem, valid in 2001
#   client.pem                    a client's
# Each NAME.pem has NAME.key. P-256: making one takes some milliseconds.
set -eu
dir=$1
mkdir -p "$dir"
cd "$dir"

authority() {
	openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \
		-subj "/CN=Pomelo test $1" -addext basicConstraints=critical,CA:TRUE \
		-keyout "$1.key" -out "$1.pem" 2>/dev/null
}

# leaf NAME SUBJECT_ALT_NAMES FROM TO
leaf() {
	openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=$1" \
		-keyout "$1.key" -out "$1.csr" 2>/dev/null
	printf 'subjectAltName=%s\n' "$2" >"$1.ext"
	openssl ca -batch -config ca.conf -in "$1.csr" -out "$1.pem" -extfile "$1.ext" \
		-startdate "$3" -enddate "$4" -notext 2>/dev/null
}

authority ca
authority other_ca
cat >ca.conf <<EOF
[ca]
default_ca = c
[c]
database = index.txt
serial = serial
new_certs_dir = .
certificate = ca.pem
private_key = ca.key
default_md = sha256
policy = p
unique_subject = no
[p]
commonName = supplied
EOF
: >index.txt
echo 1000 >serial
from=$(date -u -d '1 hour ago' +%Y%m%d%H%M%SZ)
to=$(date -u -d '2 days' +%Y%m%d%H%M%SZ)
leaf server DNS:localhost,DNS:127.0.0.1,IP:127.0.0.1 "$from" "$to"
leaf ip_only IP:127.0.0.1 "$from" "$to"
leaf wrong_name DNS:example.test "$from" "$to"
leaf expired DNS:localhost,DNS:127.0.0.1,IP:127.0.0.1 20010101000000Z 20010102000000Z
leaf client DNS:client "$from" "$to"
