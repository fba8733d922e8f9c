package webhook

import (
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/registry/metakeys"
)

func gateway(c cursor, o Object, g *networking.Gateway) {
	fromAPI := o.Annotations[metakeys.GatewaySemantics] == gatewayAPI
	if !isDNSLabel(o.Name) && !fromAPI {
		metadata := cursor{faults: c.faults}.at("metadata")
		metadata.at("name").wrong("%q is not a name of a gateway; use letters, digits and inner hyphens, at most 63, no dots", o.Name)
	}
	if len(g.Servers) == 0 {
		c.wrong("the gateway has no servers; write at least one")
	}
	ports := map[string]bool{}
	for i, s := range g.Servers {
		at := c.item("servers", i)
		if s == nil {
			at.wrong("the server is empty")
			continue
		}
		at.server(s, fromAPI)
		if s.Port == nil {
			continue
		}
		if ports[s.Port.Name] {
			at.at("port").at("name").wrong("the port name %q is used twice; each server's port needs its own", s.Port.Name)
		}
		ports[s.Port.Name] = true
		if s.GetTls().GetHttpsRedirect() && !isHTTP(parseProtocol(s.Port.Protocol)) {
			at.at("tls").at("httpsRedirect").warn("only a server of plain HTTP can redirect to HTTPS; remove httpsRedirect")
		}
	}
}

func (c cursor) server(s *networking.Server, fromAPI bool) {
	if len(s.Hosts) == 0 {
		c.wrong("the server has no hosts; write \"*\" for all")
	}
	for i, h := range s.Hosts {
		c.item("hosts", i).gatewayHost(h, fromAPI)
	}
	portSound := c.serverPort(s)
	c.serverBind(s)
	c.at("tls").serverTLS(s.Tls)
	if !portSound {
		return
	}
	p := parseProtocol(s.Port.Protocol)
	switch {
	case isTLS(p) && s.Tls == nil:
		c.wrong("a server of %s needs tls; write tls.mode and its certificates, or use protocol HTTP or TCP", p)
	case isTLS(p) || s.Tls == nil:
	case !isHTTP(p):
		c.at("tls").wrong("a server of %s has no TLS; remove tls, or use protocol TLS", p)
	case !onlyRedirects(s.Tls):
		c.at("tls").wrong("a server of plain HTTP has no TLS but httpsRedirect; use protocol HTTPS, or remove the rest")
	}
}

// onlyRedirects tells whether t has nothing that a server of plain HTTP cannot have.
func onlyRedirects(t *networking.ServerTLSSettings) bool {
	return passes(t.Mode) && t.CaCertificates == "" && t.PrivateKey == "" && t.ServerCertificate == ""
}

func passes(m networking.ServerTLSSettings_TLSmode) bool {
	return m == networking.ServerTLSSettings_PASSTHROUGH || m == networking.ServerTLSSettings_AUTO_PASSTHROUGH
}

// serverPort tells whether the port is free of faults.
func (c cursor) serverPort(s *networking.Server) bool {
	before := len(*c.faults)
	c = c.at("port")
	if s.Port == nil {
		c.wrong("the server has no port; write number, name and protocol")
		return false
	}
	if parseProtocol(s.Port.Protocol) == "" {
		c.at("protocol").unknownProtocol(s.Port.Protocol)
	}
	if s.Port.Number > 0 || !strings.HasPrefix(s.Bind, unixPrefix) {
		c.at("number").because(whyNotPort(s.Port.Number))
	}
	//nolint:staticcheck // people's files still have the old field
	if s.Port.TargetPort > 0 {
		c.at("targetPort").wrong("targetPort has no effect on a gateway; remove it")
	}
	if s.Port.Name == "" {
		c.at("name").wrong("the port has no name; write one such as \"http\"")
	}
	return len(*c.faults) == before
}

func (c cursor) serverBind(s *networking.Server) {
	sock, unix := strings.CutPrefix(s.Bind, unixPrefix)
	switch {
	case unix:
		c.at("bind").because(whyNotUnixPath(sock))
		if s.GetPort().GetNumber() != 0 {
			c.at("port").at("number").wrong("a unix socket has no port; write 0")
		}
	case s.Bind != "":
		c.at("bind").because(whyNotIP(s.Bind))
	}
}

// gatewayHost judges "host" or "namespace/host".
func (c cursor) gatewayHost(h string, fromAPI bool) {
	ns, name, slashed := strings.Cut(h, "/")
	if !slashed {
		c.qualifiedHost(h, true)
		return
	}
	if ns != "*" && ns != "." && (ns != "~" || !fromAPI) && !isDNSLabel(ns) {
		c.wrong("%q before the slash is not a namespace; write one, \"*\" for all, or \".\" for this one", ns)
	}
	c.qualifiedHost(name, true)
}

// qualifiedHost wants a name with a dot, or "*" alone. Gateways take addresses too.
func (c cursor) qualifiedHost(h string, addresses bool) {
	if h != "*" && h != "" && !strings.Contains(h, ".") {
		c.wrong("%q is a short name; write the full name of the host, or \"*\" for all", h)
	}
	if !addresses || !isIP(h) {
		c.because(whyNotHost(h))
	}
	c.because(whyPartialWildcard(h))
}

func (c cursor) serverTLS(t *networking.ServerTLSSettings) {
	if t == nil {
		return
	}
	c.ciphers(t)
	if t.Mode == networking.ServerTLSSettings_ISTIO_MUTUAL {
		c.noCertificates(t)
		return
	}
	if passes(t.Mode) && (t.CaCrl != "" || len(certificateFields(t)) > 0) {
		c.warn("mode %s does not end TLS here, so certificates have no effect; remove them", t.Mode)
	}
	sources := 0
	for _, set := range []bool{
		t.ServerCertificate != "" && t.PrivateKey != "",
		t.CredentialName != "", len(t.CredentialNames) > 0, len(t.TlsCertificates) > 0,
	} {
		if set {
			sources++
		}
	}
	if sources > 1 {
		c.wrong("credentialName, credentialNames, tlsCertificates and serverCertificate with privateKey exclude one another; keep one")
	}
	named := t.CredentialName != "" || len(t.CredentialNames) > 0
	if ends(t.Mode) && named {
		return
	}
	if ends(t.Mode) {
		c.certificates(t)
	}
	if t.CaCrl != "" {
		if t.CredentialName != "" {
			c.at("caCrl").wrong("with credentialName the revocation list is part of the credential; remove caCrl")
		}
		if t.Mode == networking.ServerTLSSettings_SIMPLE {
			c.at("caCrl").wrong("mode SIMPLE does not look at client certificates, so caCrl has no meaning; use MUTUAL or remove it")
		}
	}
}

// ends tells whether the server ends TLS with a certificate of its own.
func ends(m networking.ServerTLSSettings_TLSmode) bool {
	return m == networking.ServerTLSSettings_SIMPLE || m == networking.ServerTLSSettings_MUTUAL ||
		m == networking.ServerTLSSettings_OPTIONAL_MUTUAL
}

func (c cursor) ciphers(t *networking.ServerTLSSettings) {
	old := t.MinProtocolVersion == networking.ServerTLSSettings_TLSV1_0 || t.MinProtocolVersion == networking.ServerTLSSettings_TLSV1_1
	if old && len(t.CipherSuites) == 0 {
		c.at("minProtocolVersion").warn("versions below TLSV1_2 work only with cipherSuites that have them; list them")
	}
	seen, suites := map[string]bool{}, mesh.CipherSuites()
	for i, s := range t.CipherSuites {
		at := c.item("cipherSuites", i)
		switch {
		case s != "" && s != "ALL" && isAlnum(s[0]) && !slices.Contains(suites, s):
			at.warn("the cipher suite %q is unknown and ignored%s", s, near(s, suites...))
		case seen[s]:
			at.warn("the cipher suite %q is used twice", s)
		}
		seen[s] = true
	}
}

// certificateFields lists the set fields that say where certificates come from.
func certificateFields(t *networking.ServerTLSSettings) []string {
	var set []string
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"serverCertificate", t.ServerCertificate != ""},
		{"privateKey", t.PrivateKey != ""},
		{"caCertificates", t.CaCertificates != ""},
		{"tlsCertificates", len(t.TlsCertificates) > 0},
		{"credentialName", t.CredentialName != ""},
		{"credentialNames", len(t.CredentialNames) > 0},
	} {
		if f.set {
			set = append(set, f.name)
		}
	}
	return set
}

func (c cursor) noCertificates(t *networking.ServerTLSSettings) {
	for _, name := range certificateFields(t) {
		c.at(name).wrong("mode ISTIO_MUTUAL uses the certificates of the mesh; remove %s, or use MUTUAL", name)
	}
}

func (c cursor) certificates(t *networking.ServerTLSSettings) {
	if t.Mode != networking.ServerTLSSettings_SIMPLE && t.CaCertificates == "" {
		c.wrong("mode %s needs the authority of the clients; write caCertificates, or credentialName", t.Mode)
	}
	if len(t.TlsCertificates) > 2 {
		c.at("tlsCertificates").warn("Envoy uses two certificates at most: one RSA, one ECDSA")
	}
	pair := func(at cursor, certificate, key string) {
		if certificate == "" {
			at.wrong("mode %s needs a certificate; write serverCertificate, or credentialName", t.Mode)
		}
		if key == "" {
			at.wrong("mode %s needs the key of the certificate; write privateKey, or credentialName", t.Mode)
		}
	}
	if len(t.TlsCertificates) == 0 {
		pair(c, t.ServerCertificate, t.PrivateKey)
	}
	for i, p := range t.TlsCertificates {
		pair(c.item("tlsCertificates", i), p.GetServerCertificate(), p.GetPrivateKey())
	}
}
