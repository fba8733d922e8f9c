package capture

import (
	"bufio"
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
)

// usualSSHPort is sshd's where its configuration names none.
const usualSSHPort = 22

// sshFiles are where ports of sshd stand: its configuration, and that of systemd's socket.
func sshFiles() []string {
	return []string{
		"etc/ssh/sshd_config", "etc/ssh/sshd_config.d/*.conf", "usr/etc/ssh/sshd_config",
		"etc/systemd/system/ssh*.socket", "etc/systemd/system/ssh*.socket.d/*.conf", "run/systemd/generator/ssh*.socket.d/*.conf",
		"usr/lib/systemd/system/ssh*.socket", "lib/systemd/system/ssh*.socket",
	}
}

// FindFacts looks at this host. connection is the value of SSH_CONNECTION, which names the port
// of the session that the person works in; it may be empty.
func FindFacts(connection string) Facts {
	ports := []uint16{usualSSHPort}
	ports = append(ports, configuredSSHPorts("/")...)
	ports = append(ports, listeningSSHPorts()...)
	const fields = 4 // client's address and port, server's address and port
	if f := strings.Fields(connection); len(f) == fields {
		ports = appendPort(ports, f[fields-1])
	}
	slices.Sort(ports)
	return Facts{SSHPorts: slices.Compact(ports), Resolvers: append(knownResolvers(lookUpUID), runningResolvers()...)}
}

// resolvers are programs that answer DNS queries of a host, and ask others.
func resolvers() []string {
	return []string{
		"systemd-resolve", "systemd-network", "systemd-resolved", "systemd-networkd", "dnsmasq", "unbound", "named", "bind", "consul", "coredns",
		"kresd", "knot-resolver", "pdns_recursor", "pdns-recursor", "pihole-FTL", "pihole", "dnscrypt-proxy", "stubby", "NetworkManager",
	}
}

func lookUpUID(name string) (uint32, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return 0, err //nolint:wrapcheck // only whether there is one
	}
	id, err := strconv.ParseUint(u.Uid, 10, 32)
	return uint32(id), err
}

// knownResolvers are users that are called as such programs are.
func knownResolvers(lookUp func(name string) (uint32, error)) (out []Resolver) {
	for _, name := range resolvers() {
		if uid, err := lookUp(name); err == nil {
			out = append(out, Resolver{User: uid, Name: name})
		}
	}
	return out
}

// runningResolvers are the users of such programs that run now, under whatever name.
func runningResolvers() (out []Resolver) {
	const shown = 15 // letters of a program's name that the kernel keeps
	names := map[string]bool{}
	for _, name := range resolvers() {
		names[name[:min(len(name), shown)]] = true
	}
	processes, err := procfs.AllProcs()
	if err != nil {
		return nil
	}
	for _, p := range processes {
		name, err := p.Comm()
		if err != nil || !names[name] {
			continue
		}
		status, err := p.NewStatus()
		if err != nil {
			continue
		}
		const effective = 1
		r := Resolver{User: uint32(status.UIDs[effective]), Name: name}
		if !slices.Contains(out, r) && len(out) < maxListed/2 {
			out = append(out, r)
		}
	}
	return out
}

func appendPort(ports []uint16, text string) []uint16 {
	if p, err := strconv.ParseUint(text, 10, 16); err == nil && p > 0 {
		return append(ports, uint16(p))
	}
	return ports
}

// configuredSSHPorts are the ports in the files below a root. Files that cannot be read have
// none: what listens is looked up as well.
func configuredSSHPorts(root string) []uint16 {
	var ports []uint16
	for _, pattern := range sshFiles() {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			continue
		}
		for _, path := range paths {
			content, err := os.ReadFile(path)
			if err != nil {
				continue
			}
			for lines := bufio.NewScanner(bytes.NewReader(content)); lines.Scan(); {
				ports = append(ports, portsOfLine(lines.Text())...)
			}
		}
	}
	return ports
}

// portsOfLine are those of one line: Port 2222, ListenAddress 10.0.0.1:2222, ListenStream=2222.
func portsOfLine(line string) []uint16 {
	f := strings.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == '\t' || r == '=' || r == '"' })
	const words = 2
	if len(f) < words {
		return nil
	}
	switch strings.ToLower(f[0]) {
	case "port":
		return appendPort(nil, f[1])
	case "listenaddress", "listenstream":
		if at, err := netip.ParseAddrPort(f[1]); err == nil {
			return []uint16{at.Port()}
		}
		if i := strings.LastIndexByte(f[1], ':'); i >= 0 && strings.Count(f[1], ":") == 1 { // a name
			return appendPort(nil, f[1][i+1:])
		}
		return appendPort(nil, f[1])
	default:
		return nil
	}
}

// listeningSSHPorts are the ports at which processes called sshd listen. Other users' processes
// are visible to root only.
func listeningSSHPorts() []uint16 {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return nil
	}
	processes, err := fs.AllProcs()
	if err != nil {
		return nil
	}
	sockets := map[string]bool{}
	for _, p := range processes {
		if name, err := p.Comm(); err != nil || name != "sshd" {
			continue
		}
		open, err := p.FileDescriptorTargets()
		if err != nil {
			continue
		}
		for _, target := range open {
			sockets[target] = true
		}
	}
	if len(sockets) == 0 {
		return nil
	}
	var ports []uint16
	for _, read := range []func() (procfs.NetTCP, error){fs.NetTCP, fs.NetTCP6} { //nolint:staticcheck // netlink is for machines that ask often
		list, err := read()
		if err != nil {
			continue // without IPv6 there is no such table
		}
		for _, l := range list {
			const listening = 10 // TCP_LISTEN
			if l.St == listening && sockets[fmt.Sprintf("socket:[%d]", l.Inode)] && l.LocalPort <= highestPort {
				ports = append(ports, uint16(l.LocalPort))
			}
		}
	}
	return ports
}
