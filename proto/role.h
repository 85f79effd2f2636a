/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Roles (design.md section 4). The numbers travel in HELLO: never renumbered. No code.
 */
#pragma once

enum role { ROLE_NONE, ROLE_CLIENT, ROLE_HOLDER, ROLE_SERVICE, ROLE_ADMIN };

/* Sets of roles, for the rows of methods. */
#define ROLES_ANON    (1u << ROLE_NONE) /* before HELLO has ended */
#define ROLES_CLIENT  (1u << ROLE_CLIENT)
#define ROLES_HOLDER  (1u << ROLE_HOLDER)
#define ROLES_SERVICE (1u << ROLE_SERVICE)
#define ROLES_ADMIN   (1u << ROLE_ADMIN)
#define ROLES_ANY     (ROLES_CLIENT | ROLES_HOLDER | ROLES_SERVICE | ROLES_ADMIN)
