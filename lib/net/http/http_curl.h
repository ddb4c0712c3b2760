/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libcurl, loaded for the first request: with the libraries that it brings along that takes
 * longer than many commands of dlrun, most of which use no network. Only http.c* includes this;
 * functions have their usual names.
 */
#ifndef DLRUN_NET_HTTP_HTTP_CURL_H
#define DLRUN_NET_HTTP_HTTP_CURL_H

#include <curl/curl.h>

#include "base/util/err.h"

#define HTTP_CURL(X)                                                                               \
	X(easy_cleanup)                                                                            \
	X(easy_getinfo)                                                                            \
	X(easy_init)                                                                               \
	X(easy_pause)                                                                              \
	X(easy_recv)                                                                               \
	X(easy_send)                                                                               \
	X(easy_setopt)                                                                             \
	X(easy_strerror)                                                                           \
	X(global_init_mem)                                                                         \
	X(multi_add_handle)                                                                        \
	X(multi_assign)                                                                            \
	X(multi_cleanup)                                                                           \
	X(multi_info_read)                                                                         \
	X(multi_init)                                                                              \
	X(multi_remove_handle)                                                                     \
	X(multi_setopt)                                                                            \
	X(multi_socket_action)                                                                     \
	X(multi_strerror)                                                                          \
	X(slist_append)                                                                            \
	X(slist_free_all)

/* Filled in by http_curl_load. */
struct http_curl {
#define HTTP_CURL_MEMBER(name) __typeof__(&curl_##name) name;
	HTTP_CURL(HTTP_CURL_MEMBER)
#undef HTTP_CURL_MEMBER
};
extern struct http_curl http_curl;

/* Once is enough, more does nothing; waits for http_prepare. E_IO when it is not installed, E_BUG
 * when it does not start. */
int http_curl_load(struct err *err);
/* Wait for what http_prepare has begun: a program does not end well in the midst of it. */
void http_curl_wait(void);

#ifndef HTTP_CURL_LOADER
/* libcurl's macros that check the types of arguments do not work through a pointer. */
#undef curl_easy_getinfo
#undef curl_easy_setopt
#undef curl_multi_setopt
#define curl_easy_cleanup        http_curl.easy_cleanup
#define curl_easy_getinfo        http_curl.easy_getinfo
#define curl_easy_init           http_curl.easy_init
#define curl_easy_pause          http_curl.easy_pause
#define curl_easy_recv           http_curl.easy_recv
#define curl_easy_send           http_curl.easy_send
#define curl_easy_setopt         http_curl.easy_setopt
#define curl_easy_strerror       http_curl.easy_strerror
#define curl_multi_add_handle    http_curl.multi_add_handle
#define curl_multi_assign        http_curl.multi_assign
#define curl_multi_cleanup       http_curl.multi_cleanup
#define curl_multi_info_read     http_curl.multi_info_read
#define curl_multi_init          http_curl.multi_init
#define curl_multi_remove_handle http_curl.multi_remove_handle
#define curl_multi_setopt        http_curl.multi_setopt
#define curl_multi_socket_action http_curl.multi_socket_action
#define curl_multi_strerror      http_curl.multi_strerror
#define curl_slist_append        http_curl.slist_append
#define curl_slist_free_all      http_curl.slist_free_all
#endif

#endif
