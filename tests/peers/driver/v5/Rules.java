package peers;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Supplier;
import org.apache.rocketmq.auth.authentication.model.Subject;
import org.apache.rocketmq.auth.authorization.model.Acl;
import org.apache.rocketmq.auth.authorization.provider.AuthorizationMetadataProvider;
import org.apache.rocketmq.auth.config.AuthConfig;

/** Rules in memory, where Apache's broker has them in files. */
public final class Rules implements AuthorizationMetadataProvider {
    private final Map<String, Acl> rules = new ConcurrentHashMap<>();

    @Override
    public void initialize(AuthConfig config, Supplier<?> metadataService) {
    }

    @Override
    public void shutdown() {
    }

    @Override
    public CompletableFuture<Void> createAcl(Acl acl) {
        rules.put(acl.getSubject().getSubjectKey(), acl);
        return CompletableFuture.completedFuture(null);
    }

    @Override
    public CompletableFuture<Void> deleteAcl(Subject subject) {
        rules.remove(subject.getSubjectKey());
        return CompletableFuture.completedFuture(null);
    }

    @Override
    public CompletableFuture<Void> updateAcl(Acl acl) {
        return createAcl(acl);
    }

    @Override
    public CompletableFuture<Acl> getAcl(Subject subject) {
        return CompletableFuture.completedFuture(rules.get(subject.getSubjectKey()));
    }

    @Override
    public CompletableFuture<List<Acl>> listAcl(String subjectFilter, String resourceFilter) {
        return CompletableFuture.completedFuture(new ArrayList<>(rules.values()));
    }
}
