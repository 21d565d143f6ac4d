package config

// notBuilt lists the keys whose feature is not there yet: they take their default and refuse any other value. A feature
// that lands deletes its row.
var notBuilt = []struct{ path, takes, what string }{
	{"log.syslog", "", "logging by syslog"},
	{"log.ipfix", "", "logging by IPFIX"},
	{"log.level", "block", "logging every session"},
}

// checkBuilt refuses a value, already read, whose feature is not there.
func checkBuilt(s *settings, k *key, n *node) error {
	for _, row := range notBuilt {
		if row.path == k.path && k.codec.encode(s).text != row.takes {
			return errorAt(n.at, "%s is %s: %s is not built yet; allowed: %s", k.path, n.show(), row.what, shown(row.takes))
		}
	}
	return nil
}

func shown(takes string) string {
	if takes == "" {
		return `""`
	}
	return takes
}
