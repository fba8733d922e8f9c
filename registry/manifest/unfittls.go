package manifest

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/manifest/tree"
	"github.com/fairlead/fairlead/registry/manifest/webhook"
	"github.com/fairlead/fairlead/registry/mesh"
)

// serverName judges a name by which an Envoy chooses a filter chain.
func (u unfitCheck) serverName(name, at string) {
	if mesh.Hostname(name).IsPartialWildcard() {
		u.report(at, fmt.Sprintf("%q has a wildcard for a part of a label, which Envoy rejects in server names; write \"*.\" and the rest of the name", name))
	}
}

// tlsHosts judges the hosts of a service that is chosen by the server name.
func (u unfitCheck) tlsHosts(spec *networking.ServiceEntry) {
	for _, p := range spec.GetPorts() {
		if !mesh.ParseProtocol(p.GetProtocol()).IsTLS() {
			continue
		}
		for i, h := range spec.GetHosts() {
			u.serverName(h, fmt.Sprintf("spec.hosts[%d]", i))
		}
		return
	}
}

// claims judges the names of claims that a match has: Envoy rejects the whole route configuration if one
// is empty.
func (u unfitCheck) claims(m *networking.HTTPMatchRequest, at string) {
	for field, headers := range map[string]map[string]*networking.StringMatch{"headers": m.GetHeaders(), "withoutHeaders": m.GetWithoutHeaders()} {
		for name := range headers {
			if webhook.HasEmptyClaim(name) {
				u.report(tree.Join(at+"."+field, name), "the name of a claim is empty; write a name behind each dot, or between each [ and ]")
			}
		}
	}
}

// pins judges the hashes of certificates of clients. An Envoy rejects a listener, or the credential of a server,
// for one that is none.
func (u unfitCheck) pins(t *networking.ServerTLSSettings, at string) {
	for i, s := range t.GetVerifyCertificateSpki() {
		if b, err := base64.StdEncoding.Strict().DecodeString(s); err != nil || len(b) != sha256.Size {
			u.report(at+".verifyCertificateSpki["+strconv.Itoa(i)+"]", fmt.Sprintf("%q is not a SHA-256 hash in base64, which has 44 characters", s))
		}
	}
	for i, s := range t.GetVerifyCertificateHash() {
		digits := s
		if pairs := strings.Split(s, ":"); len(pairs) == sha256.Size {
			digits = strings.Join(pairs, "")
		}
		if b, err := hex.DecodeString(digits); err != nil || len(b) != sha256.Size {
			u.report(at+".verifyCertificateHash["+strconv.Itoa(i)+"]", fmt.Sprintf("%q is not a SHA-256 hash in hexadecimal digits: 64 of them, or 32 pairs with colons between", s))
		}
	}
}

// maxALPN is the greatest length of the name of a protocol, in bytes (RFC 7301, section 3.1).
const maxALPN = 255

// offers judges the curves and protocols that a server offers. An Envoy rejects a listener, with all its
// servers, for a curve that it does not know, one that is there twice (from 1.38 on), and a protocol
// without a name or with one that is too long.
func (u unfitCheck) offers(t *networking.ServerTLSSettings, at string) {
	for i, name := range t.GetEcdhCurves() {
		at := at + ".ecdhCurves[" + strconv.Itoa(i) + "]"
		switch {
		case !slices.Contains(ecdhCurves, name):
			u.report(at, fmt.Sprintf("%q is no curve that every Envoy accepts; use some of %s", name, strings.Join(ecdhCurves, ", ")))
		case slices.Contains(t.GetEcdhCurves()[:i], name):
			u.report(at, fmt.Sprintf("%q is there twice, which Envoys from 1.38 on refuse; remove one of them", name))
		}
	}
	for i, name := range t.GetAlpnProtocols() {
		if n := len(name); n == 0 || n > maxALPN {
			u.report(at+".alpnProtocols["+strconv.Itoa(i)+"]", fmt.Sprintf("the name of a protocol has 1 to %d bytes, this one %d; write one such as \"http/1.1\"", maxALPN, n))
		}
	}
}
