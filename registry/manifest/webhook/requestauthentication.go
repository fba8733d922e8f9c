package webhook

import (
	"net/url"
	"strconv"

	security "istio.io/api/security/v1beta1"
)

func requestAuthentication(c cursor, _ Object, r *security.RequestAuthentication) {
	c.target(r)
	for i, rule := range r.JwtRules {
		if rule != nil {
			c.item("jwtRules", i).jwtRule(rule)
		}
	}
}

func (c cursor) jwtRule(r *security.JWTRule) {
	if r.Issuer == "" && r.JwksUri == "" {
		c.wrong("the rule says not whose tokens it takes; write issuer, or jwksUri")
	}
	c.list(listCheck{name: "audiences", values: r.Audiences, check: cursor.notEmpty})
	c.list(listCheck{name: "fromParams", values: r.FromParams, check: cursor.notEmpty})
	c.list(listCheck{name: "fromCookies", values: r.FromCookies, check: cursor.notEmpty})
	if r.JwksUri != "" {
		c.at("jwksUri").jwksURI(r.JwksUri)
	}
	if r.Jwks != "" {
		c.at("jwks").jwks(r.Jwks)
	}
	for i, h := range r.FromHeaders {
		if h.GetName() == "" {
			c.item("fromHeaders", i).at("name").wrong("the header has no name")
		}
	}
	for i, h := range r.OutputClaimToHeaders {
		at := c.item("outputClaimToHeaders", i)
		if h.GetClaim() == "" || h.GetHeader() == "" {
			at.wrong("outputClaimToHeaders needs both header and claim")
			continue
		}
		// Stricter than HTTP: other proxies on the way may drop stranger names.
		at.at("header").headerToken(h.Header, "-_")
	}
	c.duration("timeout", r.Timeout)
}

func (c cursor) jwksURI(s string) {
	u, err := url.Parse(s)
	if err != nil {
		c.wrong("%q is not a URI; write one such as \"https://issuer.example.com/keys\"", s)
		return
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		c.wrong("keys cannot be fetched from %q; write a URI that begins with https:// or http://", s)
	}
	if p := u.Port(); p != "" {
		if _, err := strconv.Atoi(p); err != nil {
			c.wrong("the port %q of the URI is not a number", p)
		}
	}
}

func peerAuthentication(c cursor, _ Object, p *security.PeerAuthentication) {
	if len(p.GetSelector().GetMatchLabels()) == 0 && len(p.PortLevelMtls) > 0 {
		c.at("portLevelMtls").wrong("ports belong to chosen workloads; write selector.matchLabels, or remove portLevelMtls")
	}
	if p.PortLevelMtls != nil && len(p.PortLevelMtls) == 0 {
		c.at("portLevelMtls").wrong("portLevelMtls is empty; remove it, or name a port")
	}
	for _, port := range sorted(p.PortLevelMtls) {
		c.entry("portLevelMtls", strconv.FormatUint(uint64(port), 10)).because(whyNotPort(port))
	}
	c.policySelector("selector", p.Selector)
}
