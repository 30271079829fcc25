package peers;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Supplier;
import org.apache.rocketmq.auth.authentication.model.User;
import org.apache.rocketmq.auth.authentication.provider.AuthenticationMetadataProvider;
import org.apache.rocketmq.auth.config.AuthConfig;

/** Users in memory, where Apache's broker has them in files. */
public final class Users implements AuthenticationMetadataProvider {
    private final Map<String, User> users = new ConcurrentHashMap<>();

    @Override
    public void initialize(AuthConfig config, Supplier<?> metadataService) {
    }

    @Override
    public void shutdown() {
    }

    @Override
    public CompletableFuture<Void> createUser(User user) {
        users.put(user.getUsername(), user);
        return CompletableFuture.completedFuture(null);
    }

    @Override
    public CompletableFuture<Void> deleteUser(String name) {
        users.remove(name);
        return CompletableFuture.completedFuture(null);
    }

    @Override
    public CompletableFuture<Void> updateUser(User user) {
        return createUser(user);
    }

    @Override
    public CompletableFuture<User> getUser(String name) {
        return CompletableFuture.completedFuture(users.get(name));
    }

    @Override
    public CompletableFuture<List<User>> listUser(String filter) {
        return CompletableFuture.completedFuture(new ArrayList<>(users.values()));
    }
}
