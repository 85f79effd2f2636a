/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files of a meta store on the disk of a simulated machine (sim_disk.h), whose faults it then has:
 * power cuts, full, slow and failing disks. For scenarios of services under chance; meta_fs_fault.h is
 * for walking through every state one store can be left in.
 *
 * Calls belong to the process that makes them (a job of its pool): a killed one gets errors and
 * changes nothing, and its lock is gone.
 */
#pragma once

#include "meta/meta_fs.h"
#include "tests/support/sim_disk.h"

/* The folder path of d, made with its parents when missing. owned, meta_fs_free(). */
struct meta_fs *meta_fs_sim_new(struct sim_disk *d, const char *path);
