/* SPDX-License-Identifier: Apache-2.0 */
/* The script of pages that show several runs: what would load the page anew, in place. It only */
/* fetches pages that links and forms name anyway; without it these do. */
'use strict';
let timer, latest = 0;
const main = () => document.querySelector('main');
const stale = document.getElementById('stale');
const key = e => e.id ? '#' + CSS.escape(e.id) : e.name ? e.tagName + '[name="' +
	CSS.escape(e.name) + '"]' + (e.type == 'checkbox' ? '[value="' + CSS.escape(e.value) +
	'"]' : '') : e.tagName == 'A' && e.getAttribute('href') ?
	e.tagName + '[href="' + CSS.escape(e.getAttribute('href')) + '"]' : null;
/* Choices that the user has not sent yet stay. */
function keep(fresh) {
	for (const e of main().querySelectorAll('input,select')) {
		const other = key(e) && fresh.querySelector(key(e));
		if (!other) continue;
		if (e.type == 'checkbox') { if (e.checked != e.defaultChecked) other.checked = e.checked; }
		else if (e.type == 'search') { if (e.value != e.defaultValue) other.value = e.value; }
		else if (e.tagName == 'SELECT') other.value = e.value;
	}
}
function swap(fresh) {
	const old = main(), at = old.contains(document.activeElement) &&
		key(document.activeElement);
	const places = [...old.querySelectorAll('.runs,fieldset')].map(e =>
		[e.scrollLeft, e.scrollTop]);
	for (const e of old.querySelectorAll('details[id]')) {
		const other = fresh.querySelector('#' + CSS.escape(e.id));
		if (other) other.open = e.open;
	}
	const had = new Map([...old.querySelectorAll('.media [src]')].map(e =>
		[e.getAttribute('src'), e]));
	for (const e of fresh.querySelectorAll('.media [src]')) {
		const other = had.get(e.getAttribute('src'));
		if (other) e.replaceWith(other);
	}
	old.replaceWith(fresh);
	fresh.querySelectorAll('.runs,fieldset').forEach((e, i) =>
		places[i] && ([e.scrollLeft, e.scrollTop] = places[i]));
	if (at) fresh.querySelector(at)?.focus({preventScroll: true});
}
async function load(url, isNew) {
	const own = ++latest;
	clearTimeout(timer);
	try {
		const response = await fetch(url);
		if (!response.ok) throw new Error(response.status);
		const text = await response.text();
		if (own != latest) return;
		const page = new DOMParser().parseFromString(text, 'text/html');
		const fresh = page.querySelector('main');
		if (!isNew) keep(fresh);
		swap(document.adoptNode(fresh));
		document.title = page.title;
		stale.textContent = '';
	} catch {
		if (own != latest) return;
		if (isNew) { location.assign(url); return; }
		stale.textContent = 'dlrun proxy does not answer: this page is the last one that it sent.';
	}
	arm();
}
/* A new page would begin it anew. */
const plays = () => [...document.querySelectorAll('video,audio')].some(e => !e.paused);
function arm() {
	const seconds = +main().dataset.live || (stale.textContent ? 10 : 0);
	clearTimeout(timer);
	if (seconds) timer = setTimeout(() => document.hidden || plays() ? arm() :
		load(location.href, false), seconds * 1000);
}
function go(url) {
	history.pushState(null, '', url);
	load(url, true);
}
document.addEventListener('click', event => {
	const a = event.target.closest && event.target.closest('.runs:not(.media) th[scope=col] a');
	if (!a || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
	event.preventDefault();
	go(a.href);
});
document.addEventListener('submit', event => {
	const by = event.submitter, url = new URL(by?.getAttribute('formaction') ||
		event.target.getAttribute('action'), location.href);
	const form = [...new FormData(event.target)].filter(([, value]) => value);
	url.search = new URLSearchParams(form);
	event.preventDefault();
	go(url.href);
});
window.addEventListener('popstate', () => load(location.href, true));
arm();
