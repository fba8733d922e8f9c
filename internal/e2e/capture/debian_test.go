package capture

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
	"github.com/fairlead/fairlead/internal/nethost"
)

// debianHosts is /etc/hosts as the installer of Debian writes it, for a host of that name.
func debianHosts(name string) string {
	return "127.0.0.1\tlocalhost\n127.0.1.1\t" + name + "\n\n" +
		"# The following lines are desirable for IPv6 capable hosts\n::1     localhost ip6-localhost ip6-loopback\nff02::1 ip6-allnodes\nff02::2 ip6-allrouters\n"
}

// debian is what a command is put behind to run on a host with such a file, and with that name.
func debian(t *testing.T, on *nethost.Host, name string) []string {
	t.Helper()
	for _, program := range []string{"unshare", "mount", "hostname"} {
		if _, err := exec.LookPath(program); err != nil {
			envoytest.Missing(t, "%s is not installed: apt-get install util-linux mount hostname", program)
		}
	}
	hosts := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(hosts, []byte(debianHosts(name)), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{
		"ip", "netns", "exec", on.Name, "unshare", "--mount", "--uts", "--propagation", "private", "sh", "-c",
		`mount --bind "$0" /etc/hosts && hostname "$1" && shift && exec "$@"`, hosts, name,
	}
}

// TestHostOfItsOwnNameIsLoopback: the control plane's own host has its name at 127.0.1.1, and the server
// names itself by that name first. The host's address is that of another server, and not 127.0.0.1. Who is
// not let in is told why, in the server's words, by `agent check`.
func TestHostOfItsOwnNameIsLoopback(t *testing.T) {
	one, two := nethost.New(t), nethost.New(t)
	t.Parallel()
	h := &host{Mesh: meshtest.New(t, "", nil), Host: one, t: t, peer: two, net: 100 + nets.Add(1)}
	nethost.Link(one, two, int(h.net))
	h.Write("mesh.yaml", fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: web, namespace: lab}\nspec: {address: %s, serviceAccount: web}\n", h.ip(1)))
	fairlead, _ := h.Binaries()
	here := debian(t, one, "debian-a")
	h.Server = h.Start("server", slices.Concat(here, []string{
		fairlead, "server", "--config-dir", h.ConfigDir, "--state-dir", h.StateDir("server"), "--run-dir", h.RunDir("server"),
		"--xds-address", ":15012", "--http-address", "127.0.0.1:15014",
	})...)
	h.Server.Eventually(envoytest.Patience, func() error {
		_, err := h.CLI("host", "list", "--run-dir", h.RunDir("server"))
		return err
	})
	agent := func(wrap []string, name, workload string) []string {
		token := filepath.Join(h.Dir, name+".token")
		if err := os.WriteFile(token, []byte(h.Token("--host", name, "--workload", workload)), 0o600); err != nil {
			t.Fatal(err)
		}
		flags := []string{"--envoy", envoytest.Binary(t), "--state-dir", h.StateDir(name), "--run-dir", h.RunDir(name), "--token-file", token}
		h.Start(name, slices.Concat(wrap, []string{fairlead, "agent", "--drain-time", "1s"}, flags)...)
		return slices.Concat(wrap, []string{fairlead, "agent", "check"}, flags)
	}
	before := slices.Concat(here, []string{fairlead, "agent", "check", "--state-dir", h.StateDir("none"), "--run-dir", h.RunDir("none"), "--server", "debian-a:15012", "--server", h.ip(1) + ":15012", "--address", "127.0.0.1"})
	if out, err := exec.CommandContext(t.Context(), before[0], before[1:]...).Output(); err == nil || !found(string(out), "address", "fault", "is a loopback address") {
		t.Errorf("agent check with a loopback address: %v\n%s", err, out)
	}
	check := agent(here, "web", "lab/web")
	h.AwaitLive("web")
	out, err := exec.CommandContext(t.Context(), check[0], check[1:]...).Output()
	if err != nil || !found(string(out), "address", "ok", h.ip(1)) || !found(string(out), "server", "ok", "connected to") {
		t.Errorf("agent check: %v\n%s", err, out)
	}

	check = agent(debian(t, two, "debian-b"), "ghost", "lab/ghost")
	envoytest.Eventually(t, envoytest.Patience, func() error {
		out, err := exec.CommandContext(t.Context(), check[0], check[1:]...).Output()
		exit, ok := errors.AsType[*exec.ExitError](err)
		words := fmt.Sprintf(`no WorkloadEntry, and no instance of a catalog, has address %s with serviceAccount "ghost" in namespace "lab"`, h.ip(2))
		if !ok || exit.ExitCode() != 1 || !found(string(out), "server", "fault", words) {
			return fmt.Errorf("agent check does not say %q: %w\n%s", words, err, out)
		}
		return nil
	})
}

// found reports whether a line of `agent check` is of that check and state, and has the words.
func found(out, check, state, words string) bool {
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) > 2 && f[0] == check && f[1] == state && strings.Contains(line, words) {
			return true
		}
	}
	return false
}
