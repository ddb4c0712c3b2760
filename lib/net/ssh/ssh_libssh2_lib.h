/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libssh2, loaded when the first connection is begun. Only ssh_libssh2.c* includes this;
 * functions have their usual names.
 */
#ifndef DLRUN_NET_SSH_SSH_LIBSSH2_LIB_H
#define DLRUN_NET_SSH_SSH_LIBSSH2_LIB_H

#define LIBSSH2_DISABLE_DEPRECATION
#include <libssh2.h>

#define SSH_LIBSSH2_LIB(X)                                                                         \
	X(agent_connect)                                                                           \
	X(agent_free)                                                                              \
	X(agent_get_identity)                                                                      \
	X(agent_init)                                                                              \
	X(agent_list_identities)                                                                   \
	X(agent_set_identity_path)                                                                 \
	X(agent_userauth)                                                                          \
	X(channel_eof)                                                                             \
	X(channel_free)                                                                            \
	X(channel_get_exit_signal)                                                                 \
	X(channel_get_exit_status)                                                                 \
	X(channel_open_ex)                                                                         \
	X(channel_process_startup)                                                                 \
	X(channel_read_ex)                                                                         \
	X(channel_request_pty_ex)                                                                  \
	X(channel_request_pty_size_ex)                                                             \
	X(channel_send_eof)                                                                        \
	X(channel_setenv_ex)                                                                       \
	X(channel_wait_closed)                                                                     \
	X(channel_write_ex)                                                                        \
	X(free)                                                                                    \
	X(init)                                                                                    \
	X(keepalive_config)                                                                        \
	X(keepalive_send)                                                                          \
	X(session_banner_get)                                                                      \
	X(session_callback_set)                                                                    \
	X(session_disconnect_ex)                                                                   \
	X(session_free)                                                                            \
	X(session_handshake)                                                                       \
	X(session_hostkey)                                                                         \
	X(session_init_ex)                                                                         \
	X(session_last_error)                                                                      \
	X(session_method_pref)                                                                     \
	X(session_methods)                                                                         \
	X(session_set_blocking)                                                                    \
	X(session_supported_algs)                                                                  \
	X(userauth_authenticated)                                                                  \
	X(userauth_list)                                                                           \
	X(userauth_publickey)                                                                      \
	X(userauth_publickey_frommemory)                                                           \
	X(version)

/* Filled in by ssh_libssh2_load. */
struct ssh_libssh2_lib {
#define SSH_LIBSSH2_MEMBER(name) __typeof__(&libssh2_##name) name;
	SSH_LIBSSH2_LIB(SSH_LIBSSH2_MEMBER)
#undef SSH_LIBSSH2_MEMBER
};
extern struct ssh_libssh2_lib ssh_libssh2_lib;

/* RSA keys by SHA-2 signatures (RFC 8332), which today's servers ask for: since 1.11. */
int ssh_libssh2_has_rsa_sha2(void);

#define libssh2_agent_connect                 ssh_libssh2_lib.agent_connect
#define libssh2_agent_free                    ssh_libssh2_lib.agent_free
#define libssh2_agent_get_identity            ssh_libssh2_lib.agent_get_identity
#define libssh2_agent_init                    ssh_libssh2_lib.agent_init
#define libssh2_agent_list_identities         ssh_libssh2_lib.agent_list_identities
#define libssh2_agent_set_identity_path       ssh_libssh2_lib.agent_set_identity_path
#define libssh2_agent_userauth                ssh_libssh2_lib.agent_userauth
#define libssh2_channel_eof                   ssh_libssh2_lib.channel_eof
#define libssh2_channel_free                  ssh_libssh2_lib.channel_free
#define libssh2_channel_get_exit_signal       ssh_libssh2_lib.channel_get_exit_signal
#define libssh2_channel_get_exit_status       ssh_libssh2_lib.channel_get_exit_status
#define libssh2_channel_open_ex               ssh_libssh2_lib.channel_open_ex
#define libssh2_channel_process_startup       ssh_libssh2_lib.channel_process_startup
#define libssh2_channel_read_ex               ssh_libssh2_lib.channel_read_ex
#define libssh2_channel_request_pty_ex        ssh_libssh2_lib.channel_request_pty_ex
#define libssh2_channel_request_pty_size_ex   ssh_libssh2_lib.channel_request_pty_size_ex
#define libssh2_channel_send_eof              ssh_libssh2_lib.channel_send_eof
#define libssh2_channel_setenv_ex             ssh_libssh2_lib.channel_setenv_ex
#define libssh2_channel_wait_closed           ssh_libssh2_lib.channel_wait_closed
#define libssh2_channel_write_ex              ssh_libssh2_lib.channel_write_ex
#define libssh2_free                          ssh_libssh2_lib.free
#define libssh2_keepalive_config              ssh_libssh2_lib.keepalive_config
#define libssh2_keepalive_send                ssh_libssh2_lib.keepalive_send
#define libssh2_session_banner_get            ssh_libssh2_lib.session_banner_get
#define libssh2_session_callback_set          ssh_libssh2_lib.session_callback_set
#define libssh2_session_disconnect_ex         ssh_libssh2_lib.session_disconnect_ex
#define libssh2_session_free                  ssh_libssh2_lib.session_free
#define libssh2_session_handshake             ssh_libssh2_lib.session_handshake
#define libssh2_session_hostkey               ssh_libssh2_lib.session_hostkey
#define libssh2_session_init_ex               ssh_libssh2_lib.session_init_ex
#define libssh2_session_last_error            ssh_libssh2_lib.session_last_error
#define libssh2_session_method_pref           ssh_libssh2_lib.session_method_pref
#define libssh2_session_methods               ssh_libssh2_lib.session_methods
#define libssh2_session_set_blocking          ssh_libssh2_lib.session_set_blocking
#define libssh2_session_supported_algs        ssh_libssh2_lib.session_supported_algs
#define libssh2_userauth_authenticated        ssh_libssh2_lib.userauth_authenticated
#define libssh2_userauth_list                 ssh_libssh2_lib.userauth_list
#define libssh2_userauth_publickey            ssh_libssh2_lib.userauth_publickey
#define libssh2_userauth_publickey_frommemory ssh_libssh2_lib.userauth_publickey_frommemory
#define libssh2_version                       ssh_libssh2_lib.version

#endif
