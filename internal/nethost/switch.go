package nethost

import (
	"fmt"
	"testing"
)

// Switch is a switch for hosts.
type Switch struct {
	h *Host
	// net is the number of the network.
	net int
}

// NewSwitch makes a switch: its hosts have addresses of 10.NET.0.0/24 and fd00:NET::/64.
func NewSwitch(tb testing.TB, net int) *Switch {
	tb.Helper()
	s := &Switch{h: New(tb), net: net}
	s.h.IP("link", "add", "br0", "type", "bridge")
	s.h.IP("link", "set", "br0", "up")
	return s
}

// Plug connects a host by its eth0, without an address.
func (s *Switch) Plug(h *Host) {
	s.h.tb.Helper()
	s.PlugAs(h, "eth0")
}

// PlugAs is Plug by another interface, for hosts on several switches.
func (s *Switch) PlugAs(h *Host, device string) {
	s.h.tb.Helper()
	s.h.IP("link", "add", h.Name, "type", "veth", "peer", "name", device, "netns", h.Name)
	s.h.IP("link", "set", h.Name, "master", "br0", "up")
	h.IP("link", "set", device, "up")
}

// Unplug takes a host off the switch. Neither end of a connection hears of it.
func (s *Switch) Unplug(h *Host) {
	s.h.tb.Helper()
	s.h.IP("link", "set", h.Name, "nomaster")
}

// Replug connects a host again, with the addresses that it had.
func (s *Switch) Replug(h *Host) {
	s.h.tb.Helper()
	s.h.IP("link", "set", h.Name, "master", "br0")
}

// Number gives a plugged host the addresses with a number, and [Switch.IP4] and [Switch.IP6] are what they are.
func (s *Switch) Number(h *Host, n int) {
	s.h.tb.Helper()
	h.IP("address", "add", s.IP4(n)+"/24", "dev", "eth0")
	h.IP("address", "add", s.IP6(n)+"/64", "dev", "eth0", "nodad")
}

// Unnumber takes the addresses with a number from a host.
func (s *Switch) Unnumber(h *Host, n int) {
	s.h.tb.Helper()
	h.IP("address", "del", s.IP4(n)+"/24", "dev", "eth0")
	h.IP("address", "del", s.IP6(n)+"/64", "dev", "eth0")
}

// IP4 is the address with a number.
func (s *Switch) IP4(n int) string { return fmt.Sprintf("10.%d.0.%d", s.net, n) }

// IP6 is the address with a number.
func (s *Switch) IP6(n int) string { return fmt.Sprintf("fd00:%d::%d", s.net, n) }
