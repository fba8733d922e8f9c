package programs

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/hosttest"
)

// resolvedUser is the user of systemd-resolved.
const resolvedUser = 24001

// startResolved starts a systemd-resolved with the drop-in of docs/dns.md. The link has the network's
// nameserver, as systemd-networkd would say. The host's resolv.conf names the stub.
func (h *hosts) startResolved(at *hosttest.Host) {
	h.t.Helper()
	run, etc := at.Dir("run"), at.Dir("systemd")
	var link *net.Interface
	var err error
	at.As(0, func() { link, err = net.InterfaceByName("eth0") })
	if err != nil {
		h.t.Fatal(err)
	}
	for _, dir := range []string{"systemd/resolve", "systemd/netif/links"} {
		if err := os.MkdirAll(filepath.Join(run, dir), 0o755); err != nil {
			h.t.Fatal(err)
		}
	}
	if err := os.Chown(filepath.Join(run, "systemd/resolve"), resolvedUser, resolvedUser); err != nil {
		h.t.Fatal(err)
	}
	for path, content := range map[string]string{
		filepath.Join(etc, "resolved.conf"):                                   dropIn(h.t, "systemd-resolved"),
		filepath.Join(run, fmt.Sprintf("systemd/netif/links/%d", link.Index)): "ADMIN_STATE=configured\nOPER_STATE=routable\nCARRIER_STATE=carrier\nADDRESS_STATE=routable\nNETWORK_FILE=/etc/systemd/network/eth0.network\nDNS=" + h.Control.IP4() + "\n",
	} {
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			h.t.Fatal(err)
		}
	}
	at.Bind("/run", run)
	at.Bind("/etc/systemd", etc)
	at.Etc("resolv.conf", "nameserver 127.0.0.53\noptions edns0 trust-ad timeout:1 attempts:2\n")
	user := strconv.Itoa(resolvedUser)
	const caps = "+net_bind_service,+net_raw,+setpcap"
	at.Start(at.Label+"-resolved", 0, "setpriv", "--reuid", user, "--regid", user, "--clear-groups", "--inh-caps="+caps, "--ambient-caps="+caps,
		tool(h.t, "resolved-252.39", "systemd-resolved"))
}

// TestSystemdResolved: a real systemd-resolved sends names of the mesh to the agent, with the drop-in of
// docs/dns.md, and others to the nameserver of the link. The agent finds that one behind the stub.
func TestSystemdResolved(t *testing.T) {
	t.Parallel()
	h := start(t, (*hosttest.LAN).Host)
	h.web.Agent.Stop()
	h.resolvers["web"].Kill()
	h.startResolved(h.web)
	h.web.StartAgent("", h.web.IP4(), "--capture", "--dns")
	envoytest.Eventually(t, envoytest.Patience, func() error {
		_, err := h.web.Run(hosttest.AppUser, "getent", "ahosts", "mail.lab")
		return err
	})
	h.await(h.calls(), true)
	if out, err := h.web.Run(hosttest.AppUser, "getent", "ahostsv4", "outside.example"); err != nil || !strings.Contains(out, h.Control.IP4()) {
		t.Errorf("outside.example: %q, %v", out, err)
	}
	envoytest.Eventually(t, envoytest.Patience, func() error {
		out, err := h.Admin("web", "/v1/status")
		if err == nil && !strings.Contains(out, h.Control.IP4()+":53") && !strings.Contains(out, `"address":"`+h.Control.IP4()) {
			err = errors.New(out)
		}
		return err
	})
	h.nameserver.Kill()
	h.await(h.calls(), true)
}
