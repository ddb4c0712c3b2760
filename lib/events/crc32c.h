/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CRC-32C (Castagnoli; RFC 3720, appendix B.4), and the masked form of it that TFRecord files hold.
 */
#ifndef DLRUN_EVENTS_CRC32C_H
#define DLRUN_EVENTS_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Call it once before the others: it fills their table. More often does no harm. */
void crc32c_init(void);
uint32_t crc32c(const void *data, size_t len);
/* Turned right by 15 bits, and 0xa282ead8 added: so that a sum over data with sums in it is none
 * of them. */
uint32_t crc32c_masked(const void *data, size_t len);

#endif
