/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The version of this build: "0.2.0" of a release, what git describe says of any other commit
 * ("0.2.0-5-g1a2b3c4-dirty"); packaging/version decides. In a file of its own, because it changes
 * with each commit.
 */
#ifndef DLRUN_CLI_TERM_VERSION_H
#define DLRUN_CLI_TERM_VERSION_H

extern const char dlrun_version[];

#endif
