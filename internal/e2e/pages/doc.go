// Package pages follows the pages of the documentation as a newcomer does, by copy and paste: the page is
// the script. It has tests only; nobody calls it.
//
// A host is a network namespace with processes and a mount namespace of its own, in which /etc, /root, /run, /var/lib and
// /usr/local/bin are the host's, and /etc/hosts is as Debian's installer writes it. ssh leads to the other
// host. There is no systemd.
package pages
